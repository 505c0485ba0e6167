// A program with swapped memory on simgpu, and a rotad that the test plays: the program's memory is evicted, calls are
// made meanwhile, and the memory is restored. A row says what each call has to do (rows.h).
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/runtime/eventually.h"
#include "tests/unit/runtime/memory/on_simgpu/out_of_place/places.h"
#include "tests/unit/runtime/monitor/fake_rotad.h"

namespace rota::test {

// Gives the lease to any program that wants it, except while the program's memory has to stay evicted.
class Turns {
 public:
  Turns();
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // Takes the lease back, and has all memory evicted. False: not all of it was.
  bool take_away();
  void give();
  // What the program reports about its memory.
  const protocol::UsagePage& usage() { return rotad_.usage(); }

 private:
  void listen();
  void allow(const protocol::Reserve& ask);

  FakeRotad rotad_;
  std::uint32_t number_ = 0;
  std::atomic<bool> giving_{true};
  std::atomic<bool> wanted_{false};
  std::atomic<bool> given_back_{false};
  std::atomic<bool> stop_{false};
  std::thread listener_;
};

// What a call does while memory is evicted.
enum class Then : std::uint8_t {
  kWaits,           // for the lease or for its memory; the driver is called with everything in place, the word raised
  kSubmits,         // the same, but another function of the driver is called (rota serves the memory)
  kAnswers,         // at once, with the answer that it gives with memory in place
  kRefuses,         // at once, as plain memory is refused, without asking the driver
  kGoesOn,          // at once: the address is not examined
  kPins,            // as kWaits; nothing moves from then on
  kPinsRange,       // as kWaits; the memory that it names does not move from then on
  kPinsRangeFirst,  // the same, but the word is not raised: it is pinned before
  kExports,         // at once, without the driver; the memory moves as before
  kCaptures,        // as kWaits, and a stream captures from then on
};

// What a call has done to simgpu's memory once it has run.
enum class Effect : std::uint8_t {
  kAny,       // not checked: simgpu lacks the function, or refuses this
  kSucceeds,  // answers success
  kCopied,    // the other memory and this are equal now, 16 bytes
  kSet,       // the first word has changed
  kFreed,     // gone
};

enum class Kind : std::uint8_t { kLarge, kSmall, kPooled };  // of the memory whose address is out

struct Setting;
struct Row {
  std::vector<std::string_view> names;  // plain_name(), or that and a place: "cuMemMap handle"
  Then then;
  Effect effect = Effect::kAny;
  void (*prepare)(Setting& setting) = nullptr;
  int variants = 1;  // of its arguments, by `Setting::variant`
};
const std::vector<Row>& copy_rows();
const std::vector<Row>& graph_rows();
const std::vector<Row>& other_rows();
// Null: no row.
const Row* row_of(const Place& place);

// What calls may use that is never out of place.
struct Fixtures {
  Fixtures();
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUfunction fill = nullptr;  // (words, unsigned long count, unsigned value)
  CUarray array = nullptr;
  CUdeviceptr mapped = 0;  // mapped memory, 2 MiB
};

struct Setting {
  Setting(const Fixtures& all, const Place& where, Kind what, int which);
  ~Setting();
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;
  const Fixtures& fixtures;
  const Place& place;
  Kind kind;
  int variant;
  Arguments arguments;
  CUdeviceptr resident;  // the other memory of a copy, 4 KiB
  CUdeviceptr address = 0;
  std::uint64_t bytes = 0;
  CUstream stream = nullptr;  // of its own
  CUgraph graph = nullptr;    // with a node of each kind, made when a row asks for it
  CUgraphNode kernel = nullptr;
  CUgraphNode copy = nullptr;
  CUgraphNode set = nullptr;
  CUgraphNode values = nullptr;
  CUgraphExec executable = nullptr;

  std::string_view text() const { return place.text; }
  bool names(std::string_view part) const { return text().find(part) != std::string_view::npos; }
  void make_graph();
};

// One call. Its name in messages is that of function and place.
class Trial {
 public:
  Trial(const Fixtures& fixtures, const Place& place, Kind kind, int variant);
  void start();
  bool finished() const { return finished_.load(); }
  void judge_while_out();
  void judge_afterwards();

 private:
  void expect(bool holds, const std::string& text) const;

  const Row& row_;
  Setting setting_;
  std::string name_;
  Tried tried_;
  Arguments::Contents before_;
  Arguments::Contents resident_answer_;
  CUresult resident_result_ = CUDA_SUCCESS;
  CUresult result_ = CUDA_SUCCESS;
  std::atomic<bool> finished_{false};
  std::thread thread_;
};

// Makes these calls at the same time, in the child: evicts the memory, makes all calls, restores the memory.
void try_out(Turns& turns, const Fixtures& fixtures, std::deque<Trial>& trials);

}  // namespace rota::test
