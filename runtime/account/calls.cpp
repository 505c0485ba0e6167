// See calls.h. What a function does follows from its base name and the policy's lists, at compile time; so do the
// arguments that matter: handles, addresses, and the sizes of copies.
#include "runtime/account/calls.h"

#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "generated/driver_functions.h"
#include "runtime/account/account.h"
#include "runtime/account/ended.h"
#include "runtime/account/objects.h"

namespace rota::account {

void* targets[kSymbolCount];
constinit ended::Place ended::places[ended::kPlaces];

namespace {

using namespace api;
using namespace std::string_view_literals;  // whose lengths the compiler need not count

// Without _v2 and the like, _ptsz and _ptds.
constexpr std::string_view base_of(std::string_view name) {
  for (const std::string_view suffix : {"_ptsz", "_ptds"}) {
    if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
  }
  const std::size_t at = name.rfind("_v");
  if (at != std::string_view::npos && at + 3 == name.size() && name.back() >= '0' && name.back() <= '9') {
    name.remove_suffix(3);
  }
  return name;
}
constexpr std::string_view base_of(Symbol symbol) {
  return base_of(std::string_view(kSymbolNames[static_cast<std::size_t>(symbol)]));
}

// Sizes of batches are not counted.
constexpr bool is_single_copy(std::string_view base) {
  return group_of(base) == Group::kCopy && base.find("Batch") == std::string_view::npos;
}

constexpr bool makes(std::string_view base) {
#define ROTA_TRACE_MAKES(function, parameter) \
  if (base == #function##sv) return true;
#define ROTA_TRACE_ENDS(function, parameter)
#define ROTA_TRACE_MEMORY(function, address, bytes, rows, host, fresh)
#include "generated/trace_objects.inc"
#undef ROTA_TRACE_MAKES
#undef ROTA_TRACE_ENDS
#undef ROTA_TRACE_MEMORY
  return false;
}
constexpr bool ends(std::string_view base) {
#define ROTA_TRACE_MAKES(function, parameter)
#define ROTA_TRACE_ENDS(function, parameter) \
  if (base == #function##sv) return true;
#define ROTA_TRACE_MEMORY(function, address, bytes, rows, host, fresh)
#include "generated/trace_objects.inc"
#undef ROTA_TRACE_MAKES
#undef ROTA_TRACE_ENDS
#undef ROTA_TRACE_MEMORY
  return false;
}

// Functions that return handles one by one, of new objects or of others, and not in arrays of which only the program
// knows how long they are.
constexpr bool returns_handle(std::string_view base) {
#define ROTA_RETURNS_HANDLE(function) \
  if (base == #function##sv) return true;
#include "generated/driver_handles.inc"
#undef ROTA_RETURNS_HANDLE
  return false;
}

struct Does {
  bool allocate = false;
  bool free = false;
};
constexpr Does memory_work_of(Symbol symbol) {
  switch (symbol) {
#define ROTA_ALLOCATION(name, base, allocates, frees, how) \
  case Symbol::k_##name:                                   \
    return {allocates, frees};
#include "generated/driver_allocations.inc"
#undef ROTA_ALLOCATION
    default:
      return {};
  }
}
template <class T, class = void>
struct IsComplete : std::false_type {};
template <class T>
struct IsComplete<T, std::void_t<decltype(sizeof(T))>> : std::true_type {};

// A handle of an object is a pointer to a type that no header defines. Graphs and their nodes are not counted: captures
// and conditional nodes make some that no call returns, so one with the handle of an earlier one would look as if it
// had ended.
template <class T>
constexpr bool is_handle() {
  if constexpr (std::is_same_v<T, CUgraph> || std::is_same_v<T, CUgraphNode>) {
    return false;
  } else if constexpr (std::is_pointer_v<T>) {
    using To = std::remove_pointer_t<T>;
    return std::is_class_v<To> && !std::is_const_v<To> && !IsComplete<To>::value;
  } else {
    return false;
  }
}

template <class T>
std::uint64_t value_of(T value) noexcept {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<std::uintptr_t>(value);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<std::uint64_t>(value);
  } else {
    return 0;
  }
}

// What a successful call has returned is in use again, whatever ended it. `handle`, `address`: whether the function
// returns such; memory of the host is returned through a void**.
template <bool kHandle, bool kAddress, class T>
void note_returned(T out) noexcept {
  if constexpr (std::is_pointer_v<T>) {
    using To = std::remove_pointer_t<T>;
    constexpr bool kIsAddress = std::is_same_v<To, CUdeviceptr> || std::is_same_v<To, void*>;
    if constexpr ((kHandle && is_handle<To>()) || (kAddress && kIsAddress)) {
      if (out != nullptr) ended::remove(value_of(*out));
    }
  }
}

// --- objects that go with their context

// As the driver's documentation says of cuCtxDestroy; with them the connections to EGL streams, which it does not name.
template <class T>
constexpr bool goes_with_context() {
  return std::is_same_v<T, CUstream> || std::is_same_v<T, CUevent> || std::is_same_v<T, CUmodule> ||
         std::is_same_v<T, CUarray> || std::is_same_v<T, CUmipmappedArray> || std::is_same_v<T, CUexternalMemory> ||
         std::is_same_v<T, CUexternalSemaphore> || std::is_same_v<T, CUgraphicsResource> ||
         std::is_same_v<T, CUeglStreamConnection> || std::is_same_v<T, CUtexref> || std::is_same_v<T, CUlinkState>;
}
// Of the process or of a GPU; graphs can be launched in any context.
template <class T>
constexpr bool outlives_context() {
  return std::is_same_v<T, CUcontext> || std::is_same_v<T, CUgreenCtx> || std::is_same_v<T, CUlibrary> ||
         std::is_same_v<T, CUmemoryPool> || std::is_same_v<T, CUgraphExec> || std::is_same_v<T, CUuserObject> ||
         std::is_same_v<T, CUdevResourceDesc> || std::is_same_v<T, CUcoredumpCallbackHandle> ||
         std::is_same_v<T, CUasyncCallbackHandle> || std::is_same_v<T, CUlogsCallbackHandle>;
}
// Of an argument: it brings back no handle, or one of which this is known.
template <class Argument>
constexpr bool has_known_span() {
  using To = std::remove_pointer_t<Argument>;
  return !std::is_pointer_v<Argument> || std::is_const_v<To> || !is_handle<To>() || goes_with_context<To>() ||
         outlives_context<To>();
}
// Handles of these are numbers, which count by themselves: what keeps them apart from addresses and from each other.
constexpr std::uint64_t number_space(std::string_view base) {
  if (base.starts_with("cuTexObject")) return std::uint64_t{1} << 63;
  if (base.starts_with("cuSurfObject")) return std::uint64_t{1} << 62;
  return 0;
}

// What a function's name says. Compilers take a tenth of a second to search all lists for a name: once for each
// function.
struct Facts {
  std::string_view base;
  bool launches;
  bool is_single_copy;
  bool makes;
  bool ends;
  bool returns_handle;
  bool allocates;
  bool frees;
  std::uint64_t number_space;
};
constexpr Facts facts_of(Symbol symbol) {
  const std::string_view base = base_of(symbol);
  const Does does = memory_work_of(symbol);
  return {.base = base,
          .launches = group_of(base) == Group::kLaunch,
          .is_single_copy = is_single_copy(base),
          .makes = makes(base),
          .ends = ends(base),
          .returns_handle = returns_handle(base),
          .allocates = does.allocate,
          .frees = does.free,
          .number_space = number_space(base)};
}

std::uint64_t current_context() noexcept {
  auto* const get = reinterpret_cast<cuCtxGetCurrent_fn*>(targets[static_cast<std::size_t>(Symbol::k_cuCtxGetCurrent)]);
  CUcontext context = nullptr;
  return get != nullptr && get(&context) == CUDA_SUCCESS ? value_of(context) : 0;
}

// --- copies

enum class Direction { kToDevice, kToHost, kOnDevice, kByAddress };

constexpr Direction direction_of(std::string_view base) {
  const auto has = [base](std::string_view part) { return base.find(part) != std::string_view::npos; };
  if (has("HtoD") || has("HtoA")) return Direction::kToDevice;
  if (has("DtoH") || has("AtoH")) return Direction::kToHost;
  if (has("DtoD") || has("AtoA") || has("DtoA") || has("AtoD") || has("Peer")) return Direction::kOnDevice;
  return Direction::kByAddress;
}
constexpr Direction direction_of(CUmemorytype from, CUmemorytype to) {
  if (from == CU_MEMORYTYPE_UNIFIED || to == CU_MEMORYTYPE_UNIFIED) return Direction::kByAddress;
  if (from == CU_MEMORYTYPE_HOST) return to == CU_MEMORYTYPE_HOST ? Direction::kByAddress : Direction::kToDevice;
  return to == CU_MEMORYTYPE_HOST ? Direction::kToHost : Direction::kOnDevice;
}

void copied(ThreadPage& page, Direction direction, std::uint64_t bytes) noexcept {
  ThreadPage::Copies& copies = direction == Direction::kToDevice   ? page.to_device
                               : direction == Direction::kToHost   ? page.to_host
                               : direction == Direction::kOnDevice ? page.on_device
                                                                   : page.by_address;
  add(copies.calls, 1);
  add(copies.bytes, bytes);
}

// The description of a copy, or its size, which is the last size_t.
template <class T>
void take_copy(T value, Direction& direction, std::uint64_t& bytes) noexcept {
  if constexpr (std::is_same_v<T, size_t>) {
    bytes = value;
  } else if constexpr (std::is_pointer_v<T> && std::is_class_v<std::remove_pointer_t<T>>) {
    if constexpr (requires {
                    value->WidthInBytes;
                    value->srcMemoryType;
                  }) {
      if (value == nullptr) return;
      direction = direction_of(value->srcMemoryType, value->dstMemoryType);
      bytes = std::uint64_t{value->WidthInBytes} * value->Height;
      if constexpr (requires { value->Depth; }) bytes *= value->Depth;
    }
  }
}

// --- the wrapper

template <Symbol kSymbol, class Function>
struct Counter;

template <Symbol kSymbol, class Result, class... Arguments>
struct Counter<kSymbol, Result(Arguments...)> {
  static constexpr std::size_t kNumber = static_cast<std::size_t>(kSymbol);
  static constexpr Facts kFacts = facts_of(kSymbol);
  using First = std::tuple_element_t<0, std::tuple<Arguments..., int>>;
  // Of functions that end what their first argument is: memory, or an object.
  // Memory is what is freed without being an object: nothing but its address is known.
  static constexpr bool kIsMemory = kFacts.frees && kFacts.ends && !is_handle<First>();
  static constexpr bool kTracked = kIsMemory || is_handle<First>();
  // A pointer to a handle is where a function that makes objects writes the new one's; numbers come first.
  static constexpr bool kMakesInContext =
      kFacts.makes && kFacts.base != "cuGreenCtxStreamCreate" &&
      (kFacts.number_space != 0 || (goes_with_context<std::remove_pointer_t<Arguments>>() || ...));
  static_assert(!kFacts.makes || (has_known_span<Arguments>() && ...),
                "a new kind of object: say above whether it ends with its context");
  static constexpr bool kEndsInContext = kFacts.ends && (goes_with_context<First>() || kFacts.number_space != 0);

  static Result call(Arguments... arguments) {
    ThreadPage& before = page();
    add(before.calls[kNumber], 1);
    // The outermost one stays: what a call does inside is its own affair.
    const bool outermost = before.function.load(std::memory_order_relaxed) == 0;
    if (outermost) before.function.store(kNumber + 1, std::memory_order_relaxed);
    if constexpr (kFacts.launches) note_launch(before, arguments...);
    const bool ended_before = had_ended(first(arguments...));
    (note_handle(arguments), ...);
    // Before the call: from then on another thread's call may return the same handle for a new object.
    if constexpr (kFacts.ends && kTracked) ended::put(value_of(first(arguments...)), kSymbol);
    std::optional<objects::Owner> owner;
    if constexpr (kEndsInContext) owner = objects::ends(value_of(first(arguments...)) | kFacts.number_space);
    if constexpr (kFacts.allocates) note_caller(__builtin_return_address(0));
    struct Leave {  // however the call ends; after fork() the thread has another page
      bool outermost;
      ~Leave() {
        if (outermost && own_page != nullptr) own_page->function.store(0, std::memory_order_relaxed);
      }
    } const leave{outermost};
    auto* const next = reinterpret_cast<Result (*)(Arguments...)>(targets[kNumber]);
    if constexpr (std::is_void_v<Result>) {
      next(arguments...);
    } else {
      const Result result = next(arguments...);
      if constexpr (kFacts.allocates) allocating_module = 0;
      if constexpr (std::is_same_v<Result, CUresult>) {
        if (result == CUDA_SUCCESS) [[likely]] {
          constexpr bool kAddress = kFacts.allocates && kFacts.base.starts_with("cuMem");
          (note_returned<kFacts.returns_handle, kAddress>(arguments), ...);
          if constexpr (kMakesInContext) {
            const std::uint64_t context = current_context();
            if constexpr (kFacts.number_space != 0) note_made(*first(arguments...), context);
            (note_made_at(arguments, context), ...);
          }
          if constexpr (kFacts.base == "cuMemHostRegister") ended::remove(value_of(first(arguments...)));
          if constexpr (kFacts.is_single_copy) note_copy(page(), arguments...);
        } else {
          note_failure(result, ended_before, value_of(first(arguments...)));
          if constexpr (kEndsInContext) {
            if (owner) objects::made(value_of(first(arguments...)) | kFacts.number_space, *owner);
          }
          if constexpr (kFacts.ends && kTracked) {
            if (!ended_before) ended::remove(value_of(first(arguments...)));
          }
        }
      }
      return result;
    }
  }

 private:
  template <class First, class... Rest>
  static First first(First value, Rest...) noexcept {
    return value;
  }
  static int first() noexcept { return 0; }

  // Of a function that ends what its first argument names: whether that had ended already.
  template <class First>
  static bool had_ended(First value) noexcept {
    if constexpr (kFacts.ends && kTracked) return ended::holds(value_of(value));
    return false;
  }

  template <class Argument>
  static void note_handle(Argument value) noexcept {
    if constexpr (is_handle<Argument>()) {
      if (ended::holds(value_of(value))) [[unlikely]] {
        found(FindingKind::kEndedHandle, kSymbol, ended::ended_by(value_of(value)), value_of(value));
      }
    }
  }

  template <class Handle>
  static void note_made(Handle handle, std::uint64_t context) noexcept {
    objects::made(value_of(handle) | kFacts.number_space, {context, kSymbol});
  }
  template <class Argument>
  static void note_made_at(Argument argument, std::uint64_t context) noexcept {
    if constexpr (std::is_pointer_v<Argument> && goes_with_context<std::remove_pointer_t<Argument>>()) {
      if (argument != nullptr) note_made(*argument, context);
    }
  }

  static void note_caller(const void* caller) noexcept {
    // Allocations in stream order are as frequent as launches: for them it is not worth a walk up the stack.
    constexpr bool kFrequent = kFacts.base.ends_with("Async");
    allocating_module = kFrequent ? module_at(caller) : module_of_caller();
  }

  // NOT_READY answers a query.
  [[gnu::cold, gnu::noinline]] static void note_failure(CUresult result, bool ended_before,
                                                        std::uint64_t value) noexcept {
    if (result == CUDA_ERROR_NOT_READY) return;
    failed(kSymbol, static_cast<std::uint32_t>(result));
    if (ended_before && kIsMemory) found(FindingKind::kFreedTwice, kSymbol, ended::ended_by(value), value);
  }

  static void note_launch(ThreadPage& page, Arguments... arguments) noexcept {
    std::uint64_t function = 0;
    std::uint64_t stream = 0;
    const auto take = [&](auto value) {
      using Value = decltype(value);
      if constexpr (std::is_same_v<Value, CUfunction>) {
        function = value_of(value);
      } else if constexpr (std::is_same_v<Value, CUstream>) {
        stream = value_of(value);
      } else if constexpr (std::is_same_v<Value, const CUlaunchConfig*>) {
        if (value != nullptr) stream = value_of(value->hStream);
      }
    };
    (take(arguments), ...);
    add(page.launched, 1);
    ThreadPage::Launch& launch = page.launches[(stream * 0x9e3779b97f4a7c15u) >> 61];
    static_assert(kThreadLaunches == 8);
    launch.stream.store(stream, std::memory_order_relaxed);
    launch.function.store(function, std::memory_order_relaxed);
    launch.number.store(page.launched.load(std::memory_order_relaxed), std::memory_order_release);
  }

  static void note_copy(ThreadPage& page, Arguments... arguments) noexcept {
    Direction direction = direction_of(kFacts.base);
    std::uint64_t bytes = 0;
    (take_copy(arguments, direction, bytes), ...);
    copied(page, direction, bytes);
  }
};

// The function types by symbol; void for what no header declares.
namespace types {
using namespace api;
#define ROTA_UNDECLARED(name) using name##_fn = void;
#include "generated/driver_undeclared.inc"
#undef ROTA_UNDECLARED
}  // namespace types

template <Symbol kSymbol, class Function>
void* counter() {
  if constexpr (std::is_void_v<Function>) {
    return nullptr;
  } else {
    return reinterpret_cast<void*>(&Counter<kSymbol, Function>::call);
  }
}

}  // namespace

void* const counters[kSymbolCount] = {
#define ROTA_SYMBOL(name) counter<Symbol::k_##name, types::name##_fn>(),
#include "generated/driver_symbols.inc"
#undef ROTA_SYMBOL
};

Group group_of(Symbol function) noexcept {
  return group_of(base_of(function));
}

}  // namespace rota::account
