#include "tests/unit/runtime/memory/on_simgpu/out_of_place/program.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "generated/driver_real.h"

namespace rota::test {
namespace {

using namespace std::chrono_literals;

constexpr unsigned char kOwn = 0x11;    // what the memory that is evicted is filled with
constexpr unsigned char kOther = 0x22;  // and the other
constexpr std::uint64_t kMappedBytes = 2 * kMiB;
constexpr std::uint64_t kOtherBytes = 4096;
constexpr std::uint64_t kCompared = 16;
constexpr const char* kCode =
    "\x7f"
    "ELF";  // what simgpu takes for any code

memory::SwapBackend& swap() {
  return runtime().memory.swap();
}

std::uint64_t bytes_of(Kind kind) {
  return kind == Kind::kLarge ? 2 * kMiB : 64 << 10;
}

bool is_allocated(CUdeviceptr address) {
  const auto found = runtime().ledger.find(address);
  return found && !found->freeing;
}

CUdeviceptr allocate(Kind kind) {
  CUdeviceptr address = 0;
  if (kind == Kind::kPooled) {
    EXPECT_OK(cu.cuMemAllocAsync(&address, bytes_of(kind), nullptr));
  } else {
    EXPECT_OK(cu.cuMemAlloc_v2(&address, bytes_of(kind)));
  }
  return address;
}

// A part of the memory that is always there: a different one for each of many calls in a row.
CUdeviceptr part_of(CUdeviceptr mapped) {
  static std::uint64_t next = 0;
  return mapped + next++ % (kMappedBytes / kOtherBytes) * kOtherBytes;
}

CUdeviceptr map_memory() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  prop.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;  // so that it stays
  const CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  EXPECT_OK(cu.cuMemCreate(&handle, kMappedBytes, &prop, 0));
  EXPECT_OK(cu.cuMemAddressReserve(&address, kMappedBytes, 0, 0, 0));
  EXPECT_OK(cu.cuMemMap(address, kMappedBytes, 0, handle, 0));
  EXPECT_OK(cu.cuMemSetAccess(address, kMappedBytes, &access, 1));
  return address;
}

}  // namespace

// --- turns

Turns::Turns() {
  rotad_.keep_limits();
  listener_ = std::thread([this] { listen(); });
}

Turns::~Turns() {
  stop_.store(true);
  listener_.join();
}

void Turns::listen() {
  while (!stop_.load()) {
    while (!rotad_.quiet()) {
      const protocol::Message message = rotad_.next();
      if (message.kind == protocol::Kind::kWant) wanted_.store(true);
      if (message.kind == protocol::Kind::kGiveBack) given_back_.store(true);
      if (message.kind == protocol::Kind::kReserve) allow(message.body.reserve);
    }
    if (giving_.load() && wanted_.exchange(false)) rotad_.grant(++number_, 1, kGpuBytes);
    std::this_thread::sleep_for(50us);
  }
}

// There are no limits.
void Turns::allow(const protocol::Reserve& ask) {
  protocol::Message answer{.kind = protocol::Kind::kReserved};
  answer.body.reserved = {.gpu = ask.gpu,
                          .number = ask.number,
                          .device_bytes = ask.device_bytes,
                          .movable_bytes = ask.movable_bytes,
                          .granted = 1,
                          .text = {},
                          .full = 0,
                          .fixed_bytes = ask.fixed_bytes,
                          .swapped_bytes = ask.swapped_bytes};
  rotad_.say(answer);
}

bool Turns::take_away() {
  giving_.store(false);
  given_back_.store(false);
  rotad_.clear(kGpuBytes);
  rotad_.somebody_waits(1, 1);
  const bool back = eventually([this] { return given_back_.load(); });
  rotad_.clear(0);
  rotad_.grant(0, 0);
  rotad_.somebody_waits(0);
  return back && swap().resident_bytes(0) == 0 && !swap().all_in_place();
}

void Turns::give() {
  giving_.store(true);
}

// --- what calls use

Fixtures::Fixtures() : context(enter(0)) {
  EXPECT_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUmodule code = nullptr;
  EXPECT_OK(cu.cuModuleLoadData(&code, kCode));
  EXPECT_OK(cu.cuModuleGetFunction(&fill, code, "_Z4fillPjmj"));
  const CUDA_ARRAY_DESCRIPTOR row = {.Width = 64, .Height = 0, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
  EXPECT_OK(cu.cuArrayCreate_v2(&array, &row));
  mapped = map_memory();
}

Setting::Setting(const Fixtures& all, const Place& where, Kind what, int which)
    : fixtures(all),
      place(where),
      kind(what),
      variant(which),
      arguments(where.symbol),
      resident(part_of(all.mapped)),
      address(allocate(what)),
      bytes(bytes_of(what)) {
  EXPECT_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  EXPECT_OK(cu.cuMemsetD8_v2(address, kOwn, bytes));
  EXPECT_OK(cu.cuMemsetD8_v2(resident, kOther, kOtherBytes));
  // Addresses that are parameters themselves lead somewhere, all of them.
  for (const Place& other : places()) {
    if (other.symbol == where.symbol && other.offsets.size() == 1) arguments.put(other, resident);
  }
}

Setting::~Setting() {
  if (executable != nullptr) cu.cuGraphExecDestroy(executable);
  if (graph != nullptr) cu.cuGraphDestroy(graph);
  cu.cuStreamDestroy_v2(stream);
  if (is_allocated(address)) EXPECT_OK(cu.cuMemFree_v2(address));
}

// --- a call

const Row* row_of(const Place& place) {
  const std::string_view name = plain_name(place.symbol);
  const std::string by_place = fmt::format("{} {}", name, place.text);
  const Row* of_function = nullptr;
  for (const std::vector<Row>* rows : {&copy_rows(), &graph_rows(), &other_rows()}) {
    for (const Row& row : *rows) {
      if (std::find(row.names.begin(), row.names.end(), by_place) != row.names.end()) return &row;
      if (std::find(row.names.begin(), row.names.end(), name) != row.names.end()) of_function = &row;
    }
  }
  return of_function;
}

Trial::Trial(const Fixtures& fixtures, const Place& place, Kind kind, int variant)
    : row_(*row_of(place)),
      setting_(fixtures, place, kind, variant),
      name_(fmt::format("{}({})", name_of(place.symbol), place.text)) {
  expect(swap().begins(setting_.address) || kind != Kind::kLarge, "its memory is not in an extent");
  if (row_.prepare != nullptr) row_.prepare(setting_);
  if (place.is_address()) setting_.arguments.put(place, setting_.address);
  tried_ = {.symbol = place.symbol,
            .first = setting_.address,
            .last = setting_.address + setting_.bytes,
            .succeeds = row_.then == Then::kPins || row_.then == Then::kPinsRangeFirst || row_.then == Then::kPinsRange,
            .handed_out = {}};
  if (row_.then != Then::kAnswers) return;
  before_ = setting_.arguments.contents();
  resident_result_ = setting_.arguments.call();
  resident_answer_ = setting_.arguments.contents();
  setting_.arguments.restore(before_);
}

void Trial::expect(bool holds, const std::string& text) const {
  if (!holds) note(fmt::format("{}: {}", name_, text));
}

void Trial::start() {
  thread_ = std::thread([this] {
    EXPECT_OK(cu.cuCtxSetCurrent(setting_.fixtures.context));
    at_hand = &tried_;
    result_ = setting_.arguments.call();
    at_hand = nullptr;
    CUgraph graph = nullptr;
    if (row_.then == Then::kCaptures) cu.cuStreamEndCapture(setting_.stream, &graph);
    finished_.store(true);
  });
}

void Trial::judge_while_out() {
  const bool at_once = row_.then == Then::kAnswers || row_.then == Then::kRefuses || row_.then == Then::kGoesOn ||
                       row_.then == Then::kExports;
  expect(finished() == at_once, at_once ? "waits" : "goes on while memory is evicted");
  if (!finished()) return;
  if (row_.then == Then::kAnswers) {
    expect(result_ == resident_result_, fmt::format("answers {}, but {} with memory in place",
                                                    static_cast<int>(result_), static_cast<int>(resident_result_)));
    expect(setting_.arguments.contents() == resident_answer_, "does not tell what it tells with memory in place");
  }
  if (row_.then == Then::kRefuses) {
    expect(result_ == CUDA_ERROR_INVALID_VALUE, fmt::format("answers {}", static_cast<int>(result_)));
    expect(!tried_.reached, "asks the driver");
  }
}

void Trial::judge_afterwards() {
  thread_.join();
  const bool any_address = row_.then == Then::kGoesOn && row_.effect != Effect::kFreed;
  expect(any_address || tried_.handed_out.empty(),
         "the driver gets an address of evicted memory: " + tried_.handed_out);
  switch (row_.then) {
    case Then::kAnswers:
    case Then::kRefuses:
    case Then::kGoesOn:
      break;
    case Then::kSubmits:
      expect(!tried_.reached, "the driver is called for it");
      break;
    case Then::kWaits:
    case Then::kPins:
    case Then::kPinsRange:
    case Then::kCaptures:
      expect(tried_.reached && tried_.in_place, "the driver is not called with memory in place");
      expect(tried_.inside, "memory might move during the call");
      break;
    case Then::kExports:
      expect(result_ == CUDA_SUCCESS && !tried_.reached && swap().pinned_bytes(0) == 0, "the driver is called");
      break;
    case Then::kPinsRangeFirst:
      expect(tried_.reached && tried_.in_place, "the driver is not called with memory in place");
      break;
  }
  if (row_.then == Then::kPins) {
    expect(swap().pinned(), "memory may move afterwards");
  }
  if (row_.then == Then::kPinsRange || row_.then == Then::kPinsRangeFirst) {
    expect(swap().pinned_bytes(0) != 0 && !swap().pinned(), "other memory than its own stays as well");
  }
  if (row_.effect == Effect::kFreed) {
    expect(result_ == CUDA_SUCCESS, fmt::format("answers {}", static_cast<int>(result_)));
    expect(!is_allocated(setting_.address), "the memory is not freed");
    return;
  }
  unsigned char own[kCompared] = {};
  unsigned char other[kCompared] = {};
  unsigned char far = 0;
  EXPECT_OK(cu.cuMemcpyDtoH_v2(own, setting_.address, sizeof own));
  EXPECT_OK(cu.cuMemcpyDtoH_v2(other, setting_.resident, sizeof other));
  EXPECT_OK(cu.cuMemcpyDtoH_v2(&far, setting_.address + setting_.bytes - 1, 1));
  expect(far == kOwn, fmt::format("the last byte is {}", far));
  if (row_.effect == Effect::kAny || tried_.stood_in) return;
  expect(result_ == CUDA_SUCCESS, fmt::format("answers {}", static_cast<int>(result_)));
  if (row_.effect == Effect::kCopied) expect(std::equal(own, own + kCompared, other), "nothing was copied");
  if (row_.effect == Effect::kSet) expect(own[0] != kOwn, "nothing was written");
}

void try_out(Turns& turns, const Fixtures& fixtures, std::deque<Trial>& trials) {
  EXPECT_OK(cu.cuCtxSynchronize());
  if (!turns.take_away()) return note("memory is not evicted");
  for (Trial& trial : trials) trial.start();
  const bool settled = eventually([&] {
    const auto finished =
        std::count_if(trials.begin(), trials.end(), [](const Trial& each) { return each.finished(); });
    return static_cast<std::size_t>(finished) + runtime().gate.standing() >= trials.size();
  });
  expect(settled, "each call waits at the gate or has returned", __FILE__, __LINE__);
  for (Trial& trial : trials) trial.judge_while_out();
  turns.give();
  EXPECT_OK(cu.cuMemsetD8_v2(fixtures.mapped, 0, 1));  // returns when it has the lease
  expect(eventually([&] {
           return std::all_of(trials.begin(), trials.end(), [](const Trial& each) { return each.finished(); });
         }),
         "each call returns once memory is back", __FILE__, __LINE__);
  EXPECT_OK(cu.cuCtxSynchronize());
  for (Trial& trial : trials) trial.judge_afterwards();
}

}  // namespace rota::test
