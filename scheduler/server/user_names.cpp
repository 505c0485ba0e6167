#include "scheduler/server/user_names.h"

#include <fmt/format.h>
#include <pwd.h>

#include <chrono>
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

std::string ask_for(uid_t uid) {
  std::vector<char> buffer(16384);
  passwd entry{};
  passwd* found = nullptr;
  return getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr ? found->pw_name
                                                                                                : number(uid);
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
  return known->second.wait_for(is_new ? 10ms : 0ms) == std::future_status::ready ? known->second.get() : number(uid);
}

}  // namespace rota::server
