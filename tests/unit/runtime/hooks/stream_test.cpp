// Overrides of functions that create and destroy streams. Drivers before CUDA 12.5 have no event behind a whole
// context, so each stream gets its own events; the monitor's mark shows which streams do. (streams_test.cpp has the
// rest.)
#include <catch2/catch.hpp>
#include <set>

#include "tests/unit/runtime/hooks/program.h"

using namespace rota;
using namespace rota::test;
using api::CUresult;
using api::CUstream;

namespace {

CUresult answer = api::CUDA_SUCCESS;
std::set<CUstream> marked;

void install(FakeDriver& driver) {
  driver.set<api::cuDriverGetVersion_fn>(Symbol::k_cuDriverGetVersion, [](int* version) {
    *version = 12040;
    return api::CUDA_SUCCESS;
  });
  driver.set<api::cuEventRecord_fn>(Symbol::k_cuEventRecord, [](api::CUevent, CUstream stream) {
    marked.insert(stream);
    return api::CUDA_SUCCESS;
  });
  const auto make = [](CUstream* stream, auto...) {
    if (answer == api::CUDA_SUCCESS) *stream = reinterpret_cast<CUstream>(FakeDriver::the().next_handle += 16);
    return answer;
  };
  driver.set<api::cuStreamCreate_fn>(Symbol::k_cuStreamCreate, make);
  driver.set<api::cuStreamCreateWithPriority_fn>(Symbol::k_cuStreamCreateWithPriority, make);
  driver.set<api::cuStreamDestroy_fn>(Symbol::k_cuStreamDestroy, [](CUstream) { return answer; });
  driver.set<api::cuStreamDestroy_v2_fn>(Symbol::k_cuStreamDestroy_v2, [](CUstream) { return answer; });
  runtime().contexts.add(driver.enter_context(0), 0, false);
}

// Which streams are waited for from now on.
std::set<CUstream> marks() {
  marked.clear();
  EXPECT(runtime().contexts.mark() == driver::Contexts::Mark::kMarked);
  return marked;
}

struct Making {
  Symbol symbol;
  CUresult (*call)(CUstream* stream, unsigned flags);
};
const Table<Making> kMaking = {
    {Symbol::k_cuStreamCreate, [](auto* stream, unsigned flags) { return overrides::cuStreamCreate(stream, flags); }},
    {Symbol::k_cuStreamCreateWithPriority,
     [](auto* stream, unsigned flags) { return overrides::cuStreamCreateWithPriority(stream, flags, -1); }},
};
struct Destroying {
  Symbol symbol;
  CUresult (*call)(CUstream stream);
};
const Table<Destroying> kDestroying = {
    {Symbol::k_cuStreamDestroy, [](CUstream stream) { return overrides::cuStreamDestroy(stream); }},
    {Symbol::k_cuStreamDestroy_v2, [](CUstream stream) { return overrides::cuStreamDestroy_v2(stream); }},
};

}  // namespace

TEST_CASE("a stream of any kind is waited for from its making to its end, and one that the driver refused never is") {
  for (const Making& making : kMaking) {
    for (const Destroying& destroying : kDestroying) {
      for (const unsigned flags : {0U, unsigned{api::CU_STREAM_NON_BLOCKING}}) {
        CHECK(holds({}, [&](FakeDriver& driver) {
          now_testing(std::string(name_of(making.symbol)) + ", " + name_of(destroying.symbol));
          install(driver);
          const std::set<CUstream> none = marks();
          CUstream stream = reinterpret_cast<CUstream>(0x777);
          answer = api::CUDA_ERROR_OUT_OF_MEMORY;
          EXPECT(making.call(&stream, flags) == api::CUDA_ERROR_OUT_OF_MEMORY);
          EXPECT(stream == reinterpret_cast<CUstream>(0x777));
          EXPECT(marks() == none);
          answer = api::CUDA_SUCCESS;
          EXPECT(making.call(&stream, flags) == api::CUDA_SUCCESS);
          std::set<CUstream> with = none;
          with.insert(stream);
          EXPECT(marks() == with);
          answer = api::CUDA_ERROR_INVALID_HANDLE;
          EXPECT(destroying.call(stream) == api::CUDA_ERROR_INVALID_HANDLE);
          EXPECT(marks() == with);
          answer = api::CUDA_SUCCESS;
          EXPECT(destroying.call(stream) == api::CUDA_SUCCESS);
          EXPECT(marks() == none);
        }));
      }
    }
  }
}

namespace {

// Others make room this many times before there is enough.
struct MakingRoom : gate::Attendant {
  void arrived() override {}
  bool submits_nothing(const driver::Call&) override { return false; }
  void make_room(FunctionRef<bool()> again) override {
    ++asked;
    EXPECT(runtime().gate.traffic().inside == 0);
    if (!enough) return;
    answer = api::CUDA_SUCCESS;
    EXPECT(again());
  }
  bool enough = true;
  int asked = 0;
};

}  // namespace

TEST_CASE("a stream for which the driver has no memory is made once others have evicted theirs") {
  for (const Making& making : kMaking) {
    for (const bool enough : {true, false}) {
      CHECK(holds({}, [&](FakeDriver& driver) {
        now_testing(name_of(making.symbol));
        install(driver);
        const std::set<CUstream> none = marks();
        MakingRoom others;
        others.enough = enough;
        runtime().gate.set_attendant(&others);
        answer = api::CUDA_ERROR_OUT_OF_MEMORY;
        CUstream stream = nullptr;
        const CUresult made = making.call(&stream, api::CU_STREAM_NON_BLOCKING);
        EXPECT(made == (enough ? api::CUDA_SUCCESS : api::CUDA_ERROR_OUT_OF_MEMORY));
        EXPECT(others.asked == 1);
        EXPECT(marks().size() == none.size() + (enough ? 1 : 0));
        // No other refusal is about room.
        answer = api::CUDA_ERROR_INVALID_VALUE;
        EXPECT(making.call(&stream, 0) == api::CUDA_ERROR_INVALID_VALUE);
        EXPECT(others.asked == 1);
        runtime().gate.set_attendant(nullptr);
        answer = api::CUDA_SUCCESS;
      }));
    }
  }
}
