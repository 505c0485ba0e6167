// Names for what a process's handles and addresses mean: "stream#2", "dptr#3+0x100". Numbers follow the order of first
// appearance in the listing, per process and class, so two runs of one program give the same names whatever addresses
// they got.
//
// The listing is in the order in which calls began; threads overlap. So other threads can know an object only from the
// time at which its creation returned, while its creator's calls know it already before. An address that is freed and
// handed out again is a new object.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rota::tool {

// When and where a handle is seen; CLOCK_MONOTONIC nanoseconds.
struct Moment {
  std::uint64_t begin_ns = 0;  // of the call
  std::uint64_t end_ns = 0;
  std::uint32_t thread = 0;
};

struct Handle {
  std::string_view handle_class;  // lives as long as the program (tables.h)
  std::uint64_t value = 0;
};

class ObjectNames {
 public:
  // The handle's name; an object that was not seen before gets the next number. `written`: the call handed the handle
  // out, so it is no longer the object that was destroyed under this address. `parent`: what it was looked up in, and
  // ends with.
  std::string handle(const Handle& handle, const Moment& moment, bool written, const Handle* parent = nullptr);
  // The call made a new object. A call inside the one that made it (the driver's below the runtime's) made the same.
  void made(const Handle& handle, const Moment& moment);
  void ended(const Handle& handle, const Moment& moment);

  // The kernel's or variable's name, as the program says it. An object that had another name before is a new object.
  void set_label(const Handle& handle, const Moment& moment, const std::string& label);
  // Empty if unknown.
  std::string label(const Handle& handle, const Moment& moment);
  // Whether this value was ever seen as such a handle.
  bool known(const Handle& handle) const;
  // Likewise for addresses in the host program that mean kernels and variables.
  void set_symbol(std::uint64_t address, const std::string& label) { symbols_[address] = label; }
  std::string symbol(std::uint64_t address) const;

  // bytes == 0: not known. If not `fresh`, it is ignored where it lies in memory that is already known.
  // `own`: an allocation of the program, which live() counts until it is freed.
  void memory_made(std::uint64_t address, std::uint64_t bytes, bool host, bool fresh, const Moment& moment,
                   bool own = false);
  void memory_freed(std::uint64_t address, const Moment& moment);
  // "dptr#3+0x100", "hostptr#1"; empty where no known memory is. `device`: the type says that it is device memory, so
  // it keeps its name when it is freed, and, if the call has `written` it, gets one where none was known.
  std::string memory(std::uint64_t address, const Moment& moment, bool device, bool written);

  // What calls made and no call ended. Objects that ended only with their context are included.
  struct Live {
    std::map<std::string_view, std::uint64_t> objects;  // by kind
    std::uint64_t device_allocations = 0;
    std::uint64_t device_bytes = 0;
    std::uint64_t host_allocations = 0;
    std::uint64_t host_bytes = 0;
  };
  Live live() const;
  std::uint64_t device_bytes() const { return live_.device_bytes; }

 private:
  struct Object {
    std::uint32_t number = 0;
    std::uint32_t thread = 0;      // of its creator
    std::uint64_t born_begin = 0;  // 0: it existed before it was seen
    std::uint64_t born_end = 0;    //
    std::uint64_t gone = ~0ULL;    // when the call that ended it had returned
    std::string label;
    std::vector<Handle> children;
  };
  struct Memory {
    std::uint64_t address = 0;
    std::uint64_t bytes = 1;
    std::uint32_t number = 0;
    bool host = false;
    bool counted = false;  // in live_
    std::uint32_t thread = 0;
    std::uint64_t born_begin = 0;
    std::uint64_t born_end = 0;
    std::uint64_t gone = ~0ULL;
    std::vector<std::shared_ptr<Memory>> before;  // earlier memory, for calls that began before this was known
  };
  using Versions = std::vector<Object>;  // of one address, oldest first

  template <class T>
  static bool known_to(const T& made, const Moment& moment) {
    return made.thread == moment.thread ? made.born_begin <= moment.begin_ns : made.born_end <= moment.begin_ns;
  }
  template <class T>
  static bool inside(const T& made, const Moment& moment) {
    return made.thread == moment.thread && made.born_begin <= moment.begin_ns && moment.end_ns <= made.born_end;
  }
  static Object* find(Versions& versions, const Moment& moment);
  Object& add(const Handle& handle, Versions& versions, const Moment* made_by);
  Memory* find_memory(std::uint64_t address, const Moment& moment);
  void count(Memory& memory, bool lives);
  std::shared_ptr<Memory> add_memory(std::uint64_t address, std::uint64_t bytes, bool host);

  std::map<std::string_view, std::map<std::uint64_t, Versions>> objects_;
  std::map<std::string_view, std::uint32_t> numbers_;
  std::map<std::uint64_t, std::string> symbols_;
  std::map<std::uint64_t, std::shared_ptr<Memory>> memory_;  // by first address, never overlapping
  Live live_;                                                // of memory only
};

}  // namespace rota::tool
