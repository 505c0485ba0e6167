#include "runtime/core/left.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>
#include <unwind.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "runtime/core/mappings.h"
#include "scheduler/base/descriptor.h"

// The linker's: where this library, or the test that contains it, begins and its code ends.
extern "C" {
[[gnu::visibility("hidden")]] extern const char __ehdr_start[];  // NOLINT
[[gnu::visibility("hidden")]] extern const char etext[];
}

namespace rota {

namespace {

std::uintptr_t address(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

struct FrameSearch {
  std::uintptr_t outermost;
  std::uintptr_t inner_code = 0;  // of the frame before
  bool found = false;
  bool passed = false;
};

// The unwinder tells with each frame where the frame that it called begins.
_Unwind_Reason_Code visit_frame(_Unwind_Context* context, void* argument) {
  FrameSearch& search = *static_cast<FrameSearch*>(argument);
  const std::uintptr_t inner = _Unwind_GetCFA(context);
  const bool own = search.inner_code >= address(__ehdr_start) && search.inner_code < address(etext);
  search.found |= inner == search.outermost && own;
  search.passed |= inner > search.outermost;
  search.inner_code = _Unwind_GetIP(context);
  return search.found || search.passed ? _URC_END_OF_STACK : _URC_NO_REASON;
}

bool on_signal_stack() {
  stack_t stack{};
  return sigaltstack(nullptr, &stack) == 0 && (stack.ss_flags & SS_ONSTACK) != 0;
}

// Of a thread that blocks; 0 otherwise.
std::uintptr_t stack_pointer_of(pid_t tid) {
  const Descriptor file(::open(fmt::format("/proc/self/task/{}/syscall", tid).c_str(), O_RDONLY | O_CLOEXEC));
  char text[256];
  const ssize_t length = file ? ::read(file.get(), text, sizeof text - 1) : 0;
  if (length <= 0) return 0;
  text[length] = '\0';  // "NUMBER ARGUMENTS… STACK CODE", or "running"
  char* const code = std::strrchr(text, ' ');
  if (code == nullptr) return 0;
  *code = '\0';
  const char* const stack = std::strrchr(text, ' ');
  return stack != nullptr ? std::strtoull(stack, nullptr, 16) : 0;
}

bool in_one_mapping(std::uintptr_t one, std::uintptr_t other) {
  const auto mapping = mapping_at(one);
  return mapping && mapping->contains(other);
}

}  // namespace

bool left_behind(const void* outermost, const void* frame) {
  if (on_signal_stack()) return false;
  // If they are equal it may be the same function, with a nested call.
  if (address(frame) > address(outermost)) return true;
  FrameSearch search{.outermost = address(outermost)};
  _Unwind_Backtrace(&visit_frame, &search);
  return search.passed && !search.found;
}

bool left_on_this_stack(const void* outermost, const void* frame) {
  return address(frame) > address(outermost) && !on_signal_stack() &&
         in_one_mapping(address(outermost) - 1, address(frame) - 1);
}

bool left_by(pid_t tid, const void* outermost) {
  const std::uintptr_t stack = stack_pointer_of(tid);
  return stack >= address(outermost) && in_one_mapping(address(outermost) - 1, stack);
}

}  // namespace rota
