// Whatever the driver refuses while memory moves: the memory's contents stay right, the ledger says what lies on the
// GPU, and the next move succeeds. The functions that a move calls are not listed here: a move without refusals is
// recorded, and then each of its calls fails once.
//
// Memory of every kind moves, to another process (here the same one) where it can be handed over, and back. The test
// moves it itself, as the monitor does.
#include <catch2/catch.hpp>

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/unit/runtime/memory/on_simgpu/own_memory.h"

using namespace rota;
using namespace rota::test;

namespace {

using driver::Handed;
using driver::MemoryDescriptor;
using Calls = std::map<Symbol, int>;

constexpr std::uint64_t kHandedOver = 16 * kMiB;
constexpr std::uint64_t kGpu = 512 * kMiB;  // of which 8 MiB are cached

// A program with memory of every kind that moves.
class Moved {
 public:
  explicit Moved(bool hands_over) : hands_over_(hands_over) {
    const std::uint64_t large = hands_over ? kHandedOver : 4 * kMiB;
    for (const std::uint64_t bytes : {large, 2 * kMiB, 2 * kMiB, 2 * kMiB, std::uint64_t{100}, 2 * kMiB}) {
      plain_.push_back({.address = allocate(bytes, 0), .bytes = bytes});
    }
    plain_.front().same = true;  // and so leaves without a copy
    plain_.back().zero = true;
    for (const std::uint64_t bytes : {large, 2 * kMiB}) {
      const Handle handle = create(bytes);
      own_.push_back({.handle = handle, .bytes = bytes, .places = {map(handle, bytes), map(handle, bytes)}});
    }
    write();
    carrier_.looks = true;
  }

  // Each block gets distinct contents, except those that stay as they are, and some memory is freed and cached.
  void write() {
    ++round_;
    unsigned char pattern = round_;
    for (Plain& each : plain_) {
      if (each.zero || (each.same && round_ > 1)) continue;
      each.pattern = ++pattern;
      EXPECT_OK(cu.cuMemsetD8_v2(each.address, each.pattern, each.bytes));
    }
    for (Own& each : own_) fill(each.places[round_ % 2], each.pattern = ++pattern, each.bytes);
    EXPECT_OK(cu.cuMemFree_v2(allocate(4 * kMiB, 1)));
  }
  void right(const std::string& when) const {
    for (const Plain& each : plain_) expect_pattern(each.address, each.bytes, each.zero ? 0 : each.pattern, when);
    for (const Own& each : own_) {
      expect_pattern(each.places.front(), each.bytes, each.pattern, when);
      expect_pattern(each.places.back(), kMiB, each.pattern, when + ", at its other address");
    }
  }

  Swap::Moved out() { return swap().evict(0, kAll, mover()); }
  Swap::Moved in() { return swap().restore(0, mover()); }
  // The gate opens, and then the host is low on memory.
  void used() {
    EXPECT(swap().use_if_in_place(rota::memory::kAllDevices, [] {}));
    carrier_.within([] { swap().give_host_back(); });
  }
  // Moves out and back without any refusal.
  void goes(const std::string& when) {
    const Swap::Moved left = out();
    const std::uint64_t resident = swap().resident_bytes(0);
    const Swap::Moved back = in();
    if (left.failed || back.failed || resident != 0 || !swap().all_in_place()) {
      note(fmt::format("{}: the next move leaves {} bytes there and {} out (errors {}, {})", when, resident,
                       swap().out_bytes(0), static_cast<int>(left.error), static_cast<int>(back.error)));
    }
    used();
  }
  // The ledger has as much on the GPU as the driver. (It counts no memory of which there are only descriptors.)
  void books(const std::string& when, std::size_t free_without, std::uint64_t kernel_bytes) const {
    const std::uint64_t said = swap().resident_bytes(0);
    if (free_on_gpu() + said != free_without && free_on_gpu() + said + kernel_bytes != free_without) {
      note(fmt::format("{}: by the books {} bytes are on the GPU, and really {}", when, said,
                       free_without - free_on_gpu()));
    }
  }
  void nobody_took() { pieces_.clear(); }

 private:
  struct Plain {
    CUdeviceptr address;
    std::uint64_t bytes;
    unsigned char pattern = 0;
    bool same = false;
    bool zero = false;
  };
  struct Own {
    Handle handle;
    std::uint64_t bytes;
    std::vector<CUdeviceptr> places;
    unsigned char pattern = 0;
  };

  Swap::Move mover() {
    Swap::Move mover = carrier_.mover();
    if (!hands_over_) return mover;
    mover.exchange = {.give =
                          [this](int memory, std::uint64_t bytes) {
                            pieces_.push_back({bytes, std::make_shared<const MemoryDescriptor>(
                                                          Descriptor(fcntl(memory, F_DUPFD_CLOEXEC, 0)))});
                          },
                      .take = [this]() -> std::optional<Handed> {
                        if (pieces_.empty()) return std::nullopt;
                        Handed first = std::move(pieces_.front());
                        pieces_.pop_front();
                        return first;
                      }};
    return mover;
  }

  const bool hands_over_;
  Carrier carrier_{enter(0)};
  std::vector<Plain> plain_;
  std::vector<Own> own_;
  std::deque<Handed> pieces_;
  unsigned char round_ = 0;
};

std::string in_child(const std::function<void()>& program) {
  const Machine machine{.mode = Mode::kSwap, .limit = "", .replace = failing, .neighbour = {}, .gpu_bytes = kGpu};
  return on_simgpu(machine, [&] {
    alarm(6 * kPatience);
    runtime().memory.swap().host().set_left([] { return std::uint64_t{1} << 40; });
    program();
  });
}

// How often each function is called by the very first move, and by a later one; and what the first one leaves on the
// GPU: the kernel that finds out what has changed.
struct Watched {
  Calls first;
  Calls later;
  std::uint64_t kernel_bytes = 0;
};

Watched watch(bool hands_over) {
  const std::string report = in_child([&] {
    Moved program(hands_over);
    const std::size_t free_without = free_on_gpu() + swap().resident_bytes(0);
    for (int round = 0; round < 3; ++round) {
      Calls calls;
      counted = &calls;
      program.goes("undisturbed");
      counted = nullptr;
      program.right("undisturbed");
      note(fmt::format("bytes {} 0 {}", round, free_without - free_on_gpu() - swap().resident_bytes(0)));
      program.write();
      for (const auto& [symbol, count] : calls) {
        note(fmt::format("call {} {} {}", round, static_cast<int>(symbol), count));
      }
    }
  });
  Watched watched;
  std::istringstream lines(report);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    int round = 0;
    int symbol = 0;
    int count = 0;
    INFO(line);
    REQUIRE((words >> word >> round >> symbol >> count && (word == "call" || word == "bytes")));
    if (word == "bytes") {
      watched.kernel_bytes = static_cast<std::uint64_t>(count);
    } else if (round != 1) {
      (round == 0 ? watched.first : watched.later)[static_cast<Symbol>(symbol)] = count;
    }
  }
  return watched;
}

// Which call of which function is refused.
struct Refused {
  Symbol symbol;
  int call;
};

// Every call, except those that are repeated while a copy is waited for.
std::vector<Refused> all_of(const Calls& calls) {
  constexpr int kMost = ROTA_TEST_EVERY > 1 ? 4 : 6;
  std::vector<Refused> all;
  for (const auto& [symbol, count] : calls) {
    for (int call = 1; call <= count; call += call < kMost / 2 ? 1 : std::max(1, count / (kMost / 2))) {
      all.push_back({symbol, call});
    }
  }
  return all;
}

// Refuses one call of `all` in each round, from `first` on, and returns how many. Stops after a round in which rota has
// given up a feature that the driver refused: the other calls need a new process.
std::size_t refuse(const std::vector<Refused>& all, std::size_t first, const Watched& watched, bool hands_over,
                   bool at_start) {
  Moved program(hands_over);
  for (int round = 0; !at_start && round < 2; ++round) {
    program.goes("before");
    program.write();
  }
  const std::size_t free_without = free_on_gpu() + swap().resident_bytes(0);
  const std::uint64_t kernel_bytes = at_start ? watched.kernel_bytes : 0;
  std::size_t done = first;
  while (done < all.size()) {
    const auto [symbol, call] = all[done++];
    const std::string when = fmt::format("call {} of {} is refused", call, name_of(symbol));
    fails_with = call % 2 != 0 ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_OUT_OF_MEMORY;
    fails_at = {{symbol, call}};
    program.out();
    program.books(when + ", out", free_without, kernel_bytes);
    for (int tries = 0; tries < 5 && !swap().all_in_place(); ++tries) {
      program.in();
      program.books(when + ", in", free_without, kernel_bytes);
    }
    if (!swap().all_in_place()) {
      note(when + ": does not come back");
      break;
    }
    program.used();
    fails_at.clear();
    program.nobody_took();
    Calls after;
    counted = &after;
    program.goes(when);
    counted = nullptr;
    program.books(when + ", afterwards", free_without, kernel_bytes);
    program.right(when);
    program.write();
    if (at_start || after[Symbol::k_cuLaunchKernel] < watched.later.at(Symbol::k_cuLaunchKernel)) break;
  }
  return done - first;
}

void refuse_all(const std::vector<Refused>& all, const Watched& watched, bool hands_over, bool at_start) {
  for (std::size_t done = 0; done < all.size();) {
    std::string report =
        in_child([&] { note(fmt::format("done {}", refuse(all, done, watched, hands_over, at_start))); });
    const auto said = report.find("done ");
    INFO("from call " << all[done].call << " of " << name_of(all[done].symbol));
    REQUIRE(said != std::string::npos);
    done += static_cast<std::size_t>(std::stoi(report.substr(said + 5)));
    report.erase(said);
    CHECK(report == "");
  }
}

void refuse_every_call(bool hands_over) {
  const Watched watched = watch(hands_over);
  // Some functions that a move is known to need: otherwise nothing has been recorded.
  for (const Symbol symbol : {Symbol::k_cuMemUnmap, Symbol::k_cuMemRelease, Symbol::k_cuMemHostUnregister,
                              Symbol::k_cuEventDestroy_v2, Symbol::k_cuLaunchKernel}) {
    CHECK(watched.later.contains(symbol));
  }
  CHECK(watched.later.contains(Symbol::k_cuMemImportFromShareableHandle) == hands_over);
  refuse_all(all_of(watched.later), watched, hands_over, false);
  Calls first;
  for (const auto& [symbol, count] : watched.first) {
    if (!watched.later.contains(symbol)) first[symbol] = count;
  }
  CHECK(first.contains(Symbol::k_cuModuleLoadData));
  refuse_all(all_of(first), watched, hands_over, true);
}

}  // namespace

TEST_CASE(
    "whatever call the driver refuses to a move, contents and accounting stay right, and the next move succeeds") {
  refuse_every_call(false);
}

TEST_CASE("whatever call the driver refuses to a move that hands memory over, contents and accounting stay right") {
  refuse_every_call(true);
}

TEST_CASE("host memory that the driver does not unpin stays where it is: the driver would still copy to its pages") {
  const std::string report = in_child([] {
    enter(0);
    memory::HostPool& host = swap().host();
    void* const block = host.take(2 * kMiB);
    const auto mapped = [block] { return msync(block, 2 * kMiB, MS_ASYNC) == 0; };
    EXPECT(mapped());
    fails_at = {{Symbol::k_cuMemHostUnregister, 1}};
    host.end(block, 2 * kMiB);
    EXPECT(mapped() && host.bytes() == 2 * kMiB);
    EXPECT(host.take(2 * kMiB) == block);
    host.end(block, 2 * kMiB);
    EXPECT(!mapped() && host.bytes() == 0);
  });
  CHECK(report == "");
}

// The monitor counts refusals by that error (Monitor::lose_memory): without one it would try forever.
TEST_CASE("whatever error the driver keeps returning, memory is not restored without that error or a lack of memory") {
  constexpr Symbol kCalls[] = {
      Symbol::k_cuMemCreate,          Symbol::k_cuMemMap,        Symbol::k_cuMemSetAccess,
      Symbol::k_cuMemcpyHtoDAsync_v2, Symbol::k_cuMemsetD8Async, Symbol::k_cuEventCreate,
      Symbol::k_cuEventRecord,        Symbol::k_cuEventQuery,    Symbol::k_cuStreamSynchronize};
  constexpr CUresult kErrors[] = {
#define ROTA_ERROR(name, value) static_cast<CUresult>(value),
#include "generated/driver_errors.inc"
#undef ROTA_ERROR
  };
  for (std::size_t which = 0; which < std::size(kCalls); ++which) {
    const Symbol call = kCalls[which];
    check([&] {
      Carrier carrier(enter(0));
      CUdeviceptr memory = 0;
      EXPECT_OK(cu.cuMemAlloc_v2(&memory, 2 * kMiB));
      EXPECT_OK(cu.cuMemsetD8_v2(memory, 7, 2 * kMiB));
      // Each error for some of the calls.
      for (std::size_t index = which % ROTA_TEST_EVERY; index < std::size(kErrors); index += ROTA_TEST_EVERY) {
        const CUresult error = kErrors[index];
        if (error == CUDA_SUCCESS) continue;
        const std::string when = fmt::format("{} answers {}", name_of(call), static_cast<int>(error));
        EXPECT_OK(cu.cuCtxSynchronize());
        const Swap::Moved left = swap().evict(0, kAll, carrier.mover());
        if (left.failed || swap().resident_bytes(0) != 0) note(when + ": it does not leave before that");
        fails_with = error;
        fails_at[call] = kAlways;
        const Swap::Moved back = swap().restore(0, carrier.mover());
        fails_at.clear();
        const bool says = back.error == error || (error == CUDA_ERROR_OUT_OF_MEMORY && back.lacking != 0);
        if (swap().out_bytes(0) != 0 && !says) {
          note(fmt::format("{}: it stays away with error {} and {} bytes lacking", when, static_cast<int>(back.error),
                           back.lacking));
        }
        const Swap::Moved again = swap().restore(0, carrier.mover());
        if (again.failed || !swap().use_if_in_place(rota::memory::kAllDevices, [] {}))
          note(when + ": it does not come back after that");
        expect_pattern(memory, 2 * kMiB, 7, when);
      }
    });
  }
}
