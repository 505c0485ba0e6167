// Overrides of events: which of them the program uses for timing, where a pair of them begins and ends, and that it is
// read.
#include <catch2/catch.hpp>

#include "generated/driver_gates.h"
#include "tests/unit/runtime/hooks/program.h"

using namespace rota;
using namespace rota::test;
using api::CUevent;
using api::CUresult;
using api::CUstream;
using monitor::Timing;

namespace {

const CUstream kTimed = reinterpret_cast<CUstream>(0x70);
CUresult reply = api::CUDA_SUCCESS;

void install(FakeDriver& driver) {
  const auto record = [](CUevent, CUstream) { return reply; };
  const auto with_flags = [](CUevent, CUstream, unsigned) { return reply; };
  const auto elapsed = [](float* milliseconds, CUevent, CUevent) {
    if (reply == api::CUDA_SUCCESS) *milliseconds = 2;
    return reply;
  };
  driver.set<api::cuEventRecord_fn>(Symbol::k_cuEventRecord, record);
  driver.set<api::cuEventRecord_ptsz_fn>(Symbol::k_cuEventRecord_ptsz, record);
  driver.set<api::cuEventRecordWithFlags_fn>(Symbol::k_cuEventRecordWithFlags, with_flags);
  driver.set<api::cuEventRecordWithFlags_ptsz_fn>(Symbol::k_cuEventRecordWithFlags_ptsz, with_flags);
  driver.set<api::cuEventElapsedTime_fn>(Symbol::k_cuEventElapsedTime, elapsed);
  driver.set<api::cuEventElapsedTime_v2_fn>(Symbol::k_cuEventElapsedTime_v2, elapsed);
  driver.set<api::cuEventDestroy_fn>(Symbol::k_cuEventDestroy, [](CUevent) { return reply; });
  driver.set<api::cuEventDestroy_v2_fn>(Symbol::k_cuEventDestroy_v2, [](CUevent) { return reply; });
  reply = api::CUDA_SUCCESS;
  runtime().contexts.add(driver.enter_context(0), 0, false);
  EXPECT(gates::cuEventRecord(nullptr, nullptr) == api::CUDA_SUCCESS);  // from now on the gate is open
}

// As the monitor would report if others use the GPU.
void share() {
  runtime().monitor.timing().look({.shared = true}, monitor::now(), [](CUevent) { return false; });
}

CUevent make(unsigned flags = 0) {
  CUevent event = nullptr;
  EXPECT(overrides::cuEventCreate(&event, flags) == api::CUDA_SUCCESS);
  return event;
}

bool in_flight() {
  return runtime().monitor.timing().in_flight();
}
bool inside() {
  return runtime().monitor.timing().inside();
}

struct MakingEvents {
  Symbol symbol;
};
const Table<MakingEvents> kMakingEvents = {{Symbol::k_cuEventCreate}};
struct Recording {
  Symbol symbol;
  CUresult (*call)(CUevent event, CUstream stream);
};
const Table<Recording> kRecording = {
    {Symbol::k_cuEventRecord, overrides::cuEventRecord},
    {Symbol::k_cuEventRecord_ptsz, overrides::cuEventRecord_ptsz},
    {Symbol::k_cuEventRecordWithFlags,
     [](CUevent event, CUstream stream) { return overrides::cuEventRecordWithFlags(event, stream, 0); }},
    {Symbol::k_cuEventRecordWithFlags_ptsz,
     [](CUevent event, CUstream stream) { return overrides::cuEventRecordWithFlags_ptsz(event, stream, 0); }},
};
struct Ending {
  Symbol symbol;
  CUresult (*call)(CUevent event);
};
const Table<Ending> kEnding = {{Symbol::k_cuEventDestroy, overrides::cuEventDestroy},
                               {Symbol::k_cuEventDestroy_v2, overrides::cuEventDestroy_v2}};
struct Reading {
  Symbol symbol;
  CUresult (*call)(float* milliseconds, CUevent first, CUevent second);
};
const Table<Reading> kReading = {{Symbol::k_cuEventElapsedTime, overrides::cuEventElapsedTime},
                                 {Symbol::k_cuEventElapsedTime_v2, overrides::cuEventElapsedTime_v2}};

}  // namespace

TEST_CASE("an event without a time is nothing that the program times by, and one with a time is") {
  CHECK(holds({}, [&](FakeDriver& driver) {
    now_testing("cuEventCreate");
    install(driver);
    share();
    make(api::CU_EVENT_DISABLE_TIMING);
    EXPECT(!Timing::has_events());
    const CUevent event = make(api::CU_EVENT_BLOCKING_SYNC);
    EXPECT(Timing::has_events());
    EXPECT(Timing::matters());
    const CUevent plain = make(api::CU_EVENT_DISABLE_TIMING);
    EXPECT(overrides::cuEventRecord(plain, kTimed) == api::CUDA_SUCCESS);
    EXPECT(!in_flight());
    EXPECT(overrides::cuEventRecord(event, kTimed) == api::CUDA_SUCCESS);
    EXPECT(inside());
  }));
}

TEST_CASE("each form of a record opens a pair and closes one, of the stream that it means") {
  for (const Recording& opening : kRecording) {
    for (const Recording& closing : kRecording) {
      CHECK(holds({}, [&](FakeDriver& driver) {
        now_testing(std::string(name_of(opening.symbol)) + ", " + name_of(closing.symbol));
        install(driver);
        const CUevent first = make();
        const CUevent second = make();
        EXPECT(opening.call(first, kTimed) == api::CUDA_SUCCESS);
        EXPECT(!in_flight());  // nobody else uses the GPU
        share();
        EXPECT(opening.call(first, kTimed) == api::CUDA_SUCCESS);
        EXPECT(inside());
        EXPECT(closing.call(second, reinterpret_cast<CUstream>(0x80)) == api::CUDA_SUCCESS);
        EXPECT(inside());
        EXPECT(closing.call(second, kTimed) == api::CUDA_SUCCESS);
        EXPECT(in_flight());
        reply = api::CUDA_ERROR_INVALID_HANDLE;
        EXPECT(opening.call(first, reinterpret_cast<CUstream>(0x90)) == api::CUDA_ERROR_INVALID_HANDLE);
      }));
    }
  }
}

TEST_CASE("the NULL stream is another one in a per-thread form") {
  CHECK(holds({}, [&](FakeDriver& driver) {
    install(driver);
    const CUevent first = make();
    const CUevent second = make();
    share();
    EXPECT(overrides::cuEventRecord(first, nullptr) == api::CUDA_SUCCESS);
    EXPECT(overrides::cuEventRecord_ptsz(second, nullptr) == api::CUDA_SUCCESS);
    EXPECT(inside());
    EXPECT(overrides::cuEventRecord(second, reinterpret_cast<CUstream>(1)) == api::CUDA_SUCCESS);
    EXPECT(inside());
    EXPECT(overrides::cuEventRecord(first, reinterpret_cast<CUstream>(2)) == api::CUDA_SUCCESS);
    EXPECT(!inside());
  }));
}

TEST_CASE("what is recorded while something captures times nothing") {
  CHECK(holds({}, [&](FakeDriver& driver) {
    install(driver);
    const CUevent event = make();
    share();
    EXPECT(runtime().contexts.begin_capture(kTimed, false, [] { return api::CUDA_SUCCESS; }) == api::CUDA_SUCCESS);
    EXPECT(overrides::cuEventRecord(event, kTimed) == api::CUDA_SUCCESS);
    EXPECT(!in_flight());
  }));
}

TEST_CASE("an event that is destroyed is not asked about any more, by either form") {
  for (const Ending& ending : kEnding) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(ending.symbol));
      install(driver);
      const CUevent first = make();
      const CUevent second = make();
      share();
      EXPECT(overrides::cuEventRecord(first, kTimed) == api::CUDA_SUCCESS);
      EXPECT(overrides::cuEventRecord(second, kTimed) == api::CUDA_SUCCESS);
      EXPECT(in_flight());
      EXPECT(ending.call(second) == api::CUDA_SUCCESS);
      EXPECT(!in_flight());
    }));
  }
}

TEST_CASE(
    "pairs of a program that reads them count beyond the first sixteen, by either form, and a refusal is no reading") {
  for (const Reading& reading : kReading) {
    CHECK(holds({}, [&](FakeDriver& driver) {
      now_testing(name_of(reading.symbol));
      install(driver);
      const CUevent first = make();
      const CUevent second = make();
      share();
      const auto pair = [&] {
        EXPECT(overrides::cuEventRecord(first, kTimed) == api::CUDA_SUCCESS);
        const bool counts = inside();
        EXPECT(overrides::cuEventRecord(second, kTimed) == api::CUDA_SUCCESS);
        runtime().monitor.timing().look({.shared = true}, monitor::now(), [](CUevent) { return true; });
        return counts;
      };
      for (unsigned i = 0; i < turn::Pairs::kOnCredit; ++i) EXPECT(pair());
      EXPECT(!pair());
      float milliseconds = 0;
      reply = api::CUDA_ERROR_NOT_READY;
      EXPECT(reading.call(&milliseconds, first, second) == api::CUDA_ERROR_NOT_READY);
      reply = api::CUDA_SUCCESS;
      EXPECT(!pair());
      EXPECT(reading.call(&milliseconds, first, second) == api::CUDA_SUCCESS);
      EXPECT(milliseconds == 2);
      EXPECT(pair());
    }));
  }
}
