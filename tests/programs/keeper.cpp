// A hostile program: it keeps mappings of its own memory behind rota's back, through the driver's functions as they lie
// in the driver's file, and looks through them for what others write once rota has moved that memory out.
//
//   keeper [--bytes N[K|M|G] | --share 0.5] [--pieces 8] [--keep 3]
//
// Takes the memory in --pieces pieces (cuMemAlloc), rounded up to 2 MiB, none larger than rota's extents (128 MiB), and
// keeps a second mapping of the physical memory of --keep of them: those at the highest addresses, since of pieces of
// one size these are evicted first (runtime/memory/swap/eviction_order.cpp), while those at the lowest may never have
// to. Prints "ready" once it has them, then sets and checks its memory, and looks, until stdin closes. Ends with one
// line of JSON: {"rounds":…,"wrong":…,"looks":…,"foreign":…,"kept":…,"left":…,"looks_while_away":…}; `wrong` counts
// words of its own that did not hold what it wrote (exit status 1), `foreign` words seen through the kept mappings that
// it has never written and that are not zero. `left` of the `kept` pieces were seen to have lost the memory that the
// mapping keeps: nothing was mapped at the piece's address then; so it was at `looks_while_away` looks.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/programs/program.h"
#include "tools/elf/image.h"

using namespace program;  // NOLINT

namespace {

constexpr uint64_t kGranularity = uint64_t{2} << 20;
constexpr unsigned kOwn = 0x0badf00d;

// How much of each kept mapping is read. The less, the more often: what others write is there only for their turn.
constexpr uint64_t kLook = uint64_t{64} << 10;

// The driver as it is in its file: what dlsym answers may be rota's.
class File {
 public:
  File() : file_(open()), image_(rota::elf::Image::parse(file_->bytes(), path_)) {
    if (!image_) fail("%s", image_.error().text.c_str());
  }

  template <typename Function>
  Function* find(std::string_view name) const {
    for (std::uint32_t index = 1; index < image_->symbol_count() && image_->ok(); ++index) {
      const Elf64_Sym symbol = image_->symbol(index);
      if (!image_->exported(index, symbol) || image_->string(symbol.st_name) != name) continue;
      return reinterpret_cast<Function*>(base_ + symbol.st_value);
    }
    fail("the driver has no %s", std::string(name).c_str());
  }

 private:
  rota::Result<rota::elf::MappedFile> open() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("/libcuda.so") == std::string::npos) continue;
      base_ = std::stoull(line, nullptr, 16);  // the first mapping is that of the file's begin
      path_ = line.substr(line.find('/'));
      auto file = rota::elf::MappedFile::open(path_);
      if (!file) fail("%s", file.error().text.c_str());
      return file;
    }
    fail("no libcuda.so in this process");
  }

  uint64_t base_ = 0;
  std::string path_;
  rota::Result<rota::elf::MappedFile> file_;
  rota::Result<rota::elf::Image> image_;
};

struct Kept {
  CUdeviceptr piece = 0;    // where rota has it
  CUdeviceptr mapping = 0;  // where this program has mapped its memory a second time
  bool left = false;
};

// A second mapping of an allocation's physical memory.
Kept keep(const File& driver, CUdeviceptr piece, uint64_t bytes) {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr kept = 0;
  check(driver.find<cuMemRetainAllocationHandle_fn>("cuMemRetainAllocationHandle")(&handle,
                                                                                   reinterpret_cast<void*>(piece)),
        "the driver's cuMemRetainAllocationHandle");
  check(driver.find<cuMemAddressReserve_fn>("cuMemAddressReserve")(&kept, bytes, 0, 0, 0),
        "the driver's cuMemAddressReserve");
  check(driver.find<cuMemMap_fn>("cuMemMap")(kept, bytes, 0, handle, 0), "the driver's cuMemMap");
  const CUmemAccessDesc access{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  check(driver.find<cuMemSetAccess_fn>("cuMemSetAccess")(kept, bytes, &access, 1), "the driver's cuMemSetAccess");
  return {.piece = piece, .mapping = kept};
}

}  // namespace

int main(int argc, char** argv) {
  Options options(argc, argv, "keeper [--bytes N[K|M|G] | --share 0.5] [--pieces 8] [--keep 3]");
  start();
  uint64_t bytes = options.bytes("--bytes", uint64_t{512} << 20);
  size_t free = 0;
  size_t total = 0;
  CHECK(cuMemGetInfo_v2(&free, &total));
  if (const double share = options.number("--share", 0); share > 0) {
    bytes = static_cast<uint64_t>(share * static_cast<double>(total));
  }
  const auto count = static_cast<size_t>(options.number("--pieces", 8));
  const auto keeps = std::min(count, static_cast<size_t>(options.number("--keep", 3)));
  options.end();

  const uint64_t piece_bytes = (bytes / count + kGranularity - 1) / kGranularity * kGranularity;
  const uint64_t words = piece_bytes / sizeof(unsigned);
  std::vector<CUdeviceptr> pieces(count);
  for (CUdeviceptr& piece : pieces) {
    CHECK(cuMemAlloc_v2(&piece, piece_bytes));
    CHECK(cuMemsetD32_v2(piece, kOwn, words));
  }
  CHECK(cuCtxSynchronize());
  const File driver;
  CUcontext context = nullptr;
  check(driver.find<cuCtxGetCurrent_fn>("cuCtxGetCurrent")(&context), "the driver's cuCtxGetCurrent");
  std::ranges::sort(pieces, std::greater<>());
  std::vector<Kept> kept;
  for (size_t number = 0; number < keeps; ++number) kept.push_back(keep(driver, pieces[number], piece_bytes));
  std::puts("ready");
  std::fflush(stdout);

  const auto strange = [](const std::vector<unsigned>& all, auto own) {
    return static_cast<uint64_t>(std::ranges::count_if(all, std::not_fn(own)));
  };
  std::atomic<bool> end{false};
  std::atomic<uint64_t> looks{0};
  std::atomic<uint64_t> foreign{0};
  std::atomic<uint64_t> away{0};
  // While the rest waits for its turn.
  std::thread looking([&] {
    check(driver.find<cuCtxSetCurrent_fn>("cuCtxSetCurrent")(context), "the driver's cuCtxSetCurrent");
    auto* const look = driver.find<cuMemcpyDtoH_v2_fn>("cuMemcpyDtoH_v2");
    // Not cuMemRetainAllocationHandle, which would say whose memory lies there: beside a thread that unmaps and
    // releases it, a release of what that returned made the driver free memory that it had freed (seen on an H100,
    // 580.159.04).
    auto* const ask = driver.find<cuPointerGetAttribute_fn>("cuPointerGetAttribute");
    std::vector<unsigned> seen(kLook / sizeof(unsigned));
    while (!end) {
      for (Kept& each : kept) {
        unsigned mapped = 0;
        if (ask(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, each.piece) != CUDA_SUCCESS || mapped == 0) {
          each.left = true;
          ++away;
        }
        check(look(seen.data(), each.mapping, kLook), "the driver's cuMemcpyDtoH of a kept mapping");
        foreign += strange(seen, [](unsigned word) { return word == kOwn || word == 0; });
        ++looks;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // so that the other programs make progress
    }
  });
  std::vector<unsigned> seen(words);
  uint64_t rounds = 0;
  uint64_t wrong = 0;
  while (!stdin_closed()) {
    CHECK(cuMemcpyDtoH_v2(seen.data(), pieces[rounds % count], piece_bytes));
    wrong += strange(seen, [](unsigned word) { return word == kOwn; });
    for (const CUdeviceptr each : pieces) CHECK(cuMemsetD32Async(each, kOwn, words, nullptr));
    CHECK(cuCtxSynchronize());
    ++rounds;
  }
  end = true;
  looking.join();
  const auto left = static_cast<size_t>(std::ranges::count_if(kept, &Kept::left));
  std::printf("{\"rounds\":%" PRIu64 ",\"wrong\":%" PRIu64 ",\"looks\":%" PRIu64 ",\"foreign\":%" PRIu64
              ",\"kept\":%zu,\"left\":%zu,\"looks_while_away\":%" PRIu64 "}\n",
              rounds, wrong, looks.load(), foreign.load(), kept.size(), left, away.load());
  std::fflush(stdout);
  return wrong == 0 ? 0 : 1;
}
