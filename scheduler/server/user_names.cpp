#include "scheduler/server/user_names.h"

#include <fmt/format.h>
#include <pwd.h>

#include <chrono>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace rota::server {
namespace {

// A judgment: more users than have rotads of their own on one machine.
constexpr std::size_t kMostKnown = 1000;

std::string number(uid_t uid) {
  return fmt::format("uid {}", uid);
}

// Empty: there is none, or no memory for it. An exception in a thread would end rotad.
std::string ask_for(uid_t uid) noexcept try {
  std::vector<char> buffer(16384);
  passwd entry{};
  passwd* found = nullptr;
  const bool answered = getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr;
  return answered ? found->pw_name : "";
} catch (const std::bad_alloc&) {
  return {};
}

}  // namespace

std::string UserNames::of(uid_t uid) {
  using namespace std::chrono_literals;
  auto known = asked_.find(uid);
  const bool is_new = known == asked_.end();
  if (is_new) {
    if (asked_.size() >= kMostKnown) return number(uid);
    std::promise<std::string> promise;
    auto answer = promise.get_future().share();
    try {
      std::thread([uid, promise = std::move(promise)]() mutable { promise.set_value(ask_for(uid)); }).detach();
    } catch (const std::system_error&) {
      return number(uid);  // no thread can be had now
    }
    known = asked_.emplace(uid, std::move(answer)).first;
  }
  const bool answered = known->second.wait_for(is_new ? 10ms : 0ms) == std::future_status::ready;
  return answered && !known->second.get().empty() ? known->second.get() : number(uid);
}

}  // namespace rota::server
