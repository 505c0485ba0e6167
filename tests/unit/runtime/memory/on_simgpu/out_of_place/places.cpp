#include "tests/unit/runtime/memory/on_simgpu/out_of_place/places.h"

#include <type_traits>
#include <utility>

namespace rota::test {

thread_local Tried* at_hand = nullptr;

namespace {

// --- what the driver sees

template <typename Type>
bool is_out(const Tried& tried, Type value) {
  if constexpr (std::is_same_v<Type, CUdeviceptr>) {
    return value >= tried.first && value < tried.last;
  } else if constexpr (std::is_same_v<Type, void*>) {
    return is_out(tried, static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(value)));
  } else {
    return false;
  }
}

template <Symbol kSymbol, typename Function>
struct Watched;
template <Symbol kSymbol, typename... Parameters>
struct Watched<kSymbol, CUresult(Parameters...)> {
  static inline CUresult (*simulated)(Parameters...) = nullptr;

  static CUresult call(Parameters... parameters) {
    Tried* const tried = at_hand;
    if (tried == nullptr) return simulated(parameters...);
    const bool in_place = runtime().memory.swap().all_in_place();
    // A range that is freed has no memory mapped any more, and may be anywhere.
    const bool gives_back = kSymbol == Symbol::k_cuMemAddressFree;
    if (!in_place && !gives_back && (is_out(*tried, parameters) || ...)) {
      tried->handed_out += std::string(name_of(kSymbol)) + " ";
    }
    if (kSymbol != tried->symbol) return simulated(parameters...);
    tried->reached = true;
    tried->in_place = in_place;
    tried->inside = gate::may_not_wait();
    if (tried->succeeds) return CUDA_SUCCESS;
    const CUresult result = simulated(parameters...);
    tried->stood_in = result == CUDA_ERROR_NOT_SUPPORTED;
    return tried->stood_in ? CUDA_SUCCESS : result;
  }
};

// --- how to call

template <typename Type>
constexpr bool leads_to_something(Type*) {
  return std::is_void_v<Type> || requires { sizeof(Type); };
}

// A pointer that is no handle and no callback.
template <typename Type>
constexpr bool kWantsMemory = [] {
  using Plain = std::remove_cv_t<Type>;
  if constexpr (!std::is_pointer_v<Plain> || std::is_function_v<std::remove_pointer_t<Plain>>) {
    return false;
  } else {
    return leads_to_something(Plain{});
  }
}();

template <typename... Parameters>
std::vector<std::size_t> parameters_with_memory(CUresult (*)(Parameters...)) {
  std::vector<std::size_t> which;
  std::size_t index = 0;
  ((kWantsMemory<Parameters> ? which.push_back(index++) : void(index++)), ...);
  return which;
}

template <typename... Parameters, std::size_t... kIndex>
CUresult call_with(CUresult (*function)(Parameters...), Arguments& arguments, std::index_sequence<kIndex...>) {
  return function(arguments.value<std::remove_cv_t<Parameters>>(kIndex)...);
}

template <typename... Parameters>
CUresult call_with(CUresult (*function)(Parameters...), Arguments& arguments) {
  return call_with(function, arguments, std::index_sequence_for<Parameters...>());
}

struct Function {
  std::vector<std::size_t> (*with_memory)() = nullptr;
  CUresult (*call)(Arguments& arguments) = nullptr;
  void* (*watch)(void* simulated) = nullptr;
};

template <Symbol kSymbol, auto kMember, typename Type>
Function function_of() {
  return {.with_memory = [] { return parameters_with_memory(static_cast<Type*>(nullptr)); },
          .call = [](Arguments& arguments) { return call_with(cu.*kMember, arguments); },
          .watch =
              [](void* simulated) {
                using Here = Watched<kSymbol, Type>;
                Here::simulated = reinterpret_cast<Type*>(simulated);
                return reinterpret_cast<void*>(&Here::call);
              }};
}

const Function& function(Symbol symbol) {
  static const auto kAll = [] {
    std::array<Function, kSymbolCount> all;
#define ROTA_ADDRESS(symbol, ...) \
  all[static_cast<std::size_t>(Symbol::k_##symbol)] = function_of<Symbol::k_##symbol, &Cuda::symbol, symbol##_fn>();
#define ROTA_HOLDER(symbol, ...) ROTA_ADDRESS(symbol)
#define ROTA_PHYSICAL_HANDLE(symbol, ...) ROTA_ADDRESS(symbol)
#include "generated/driver_addresses.inc"
#include "generated/driver_physical.inc"
#undef ROTA_PHYSICAL_HANDLE
#undef ROTA_HOLDER
#undef ROTA_ADDRESS
    return all;
  }();
  return kAll[static_cast<std::size_t>(symbol)];
}

}  // namespace

const std::vector<Place>& places() {
  static const std::vector<Place> kPlaces = {
#define ROTA_ADDRESS(symbol, text, parameter, ...) {Symbol::k_##symbol, text, parameter, {__VA_ARGS__}},
#define ROTA_HOLDER(symbol, text, parameter) {Symbol::k_##symbol, text, parameter, {}},
#include "generated/driver_addresses.inc"
#undef ROTA_HOLDER
#undef ROTA_ADDRESS
  };
  return kPlaces;
}

std::string_view plain_name(Symbol symbol) {
  std::string_view name = name_of(symbol);
  for (const std::string_view form : {"_ptsz", "_ptds"}) {
    if (name.ends_with(form)) name.remove_suffix(form.size());
  }
  return name;
}

void* watched(Symbol symbol, void* simulated) {
  const Function& found = function(symbol);
  return found.watch != nullptr ? found.watch(simulated) : nullptr;
}

Arguments::Arguments(Symbol symbol) : symbol_(symbol) {
  for (const std::size_t parameter : function(symbol).with_memory()) value<void*>(parameter) = fresh();
}

void Arguments::put(const Place& place, CUdeviceptr address) {
  unsigned char* where = values_[place.parameter].data() + place.offsets.front();
  for (std::size_t index = 1; index < place.offsets.size(); ++index) {
    auto& pointer = *reinterpret_cast<unsigned char**>(where);
    if (pointer == nullptr) pointer = fresh();
    where = pointer + place.offsets[index];
  }
  std::memcpy(where, &address, sizeof address);
}

Arguments::Contents Arguments::contents() const {
  Contents all;
  for (const Block& block : blocks_) all.insert(all.end(), block.begin(), block.end());
  return all;
}

void Arguments::restore(const Contents& contents) {
  std::size_t at = 0;
  for (Block& block : blocks_) {
    std::memcpy(block.data(), contents.data() + at, block.size());
    at += block.size();
  }
}

CUresult Arguments::call() {
  return function(symbol_).call(*this);
}

}  // namespace rota::test
