// A callable that is passed down and called before the call that it was passed to returns. Unlike std::function it owns
// nothing: a lambda with more than two references would be copied to the heap there, for each call of the program.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace rota {

template <typename Signature>
class FunctionRef;

// Not to be kept: it refers to a callable that may end with the expression in which this object was made.
template <typename Result, typename... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  template <typename Callable>
    requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef> &&
             std::is_invocable_r_v<Result, Callable&, Arguments...>)
  FunctionRef(Callable&& callable)  // NOLINT(google-explicit-constructor): stands where a callable is expected
      : object_((void*)std::addressof(callable)),  // NOLINT: const or not, and a function's, too
        call_([](void* object, Arguments... arguments) -> Result {
          return (*reinterpret_cast<std::remove_reference_t<Callable>*>(object))(std::forward<Arguments>(arguments)...);
        }) {}

  Result operator()(Arguments... arguments) const { return call_(object_, std::forward<Arguments>(arguments)...); }

 private:
  void* object_;
  Result (*call_)(void* object, Arguments... arguments);
};

}  // namespace rota
