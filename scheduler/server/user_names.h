// Names of users, without waiting for them: a directory service may take as long as it likes to answer.
#pragma once

#include <sys/types.h>

#include <future>
#include <map>
#include <string>

namespace rota::server {

class UserNames {
 public:
  // The user's name; "uid 1000" if there is none, or none is known within 10 ms. It is asked for once.
  std::string of(uid_t uid);

 private:
  std::map<uid_t, std::shared_future<std::string>> asked_;
};

}  // namespace rota::server
