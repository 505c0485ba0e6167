// What a rig's tests may have of each GPU: what it has less what others use, as far as rotad knows.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "tools/rota/ci/admissions.h"
#include "tools/rota/ci/identify.h"
#include "tools/rota/report/account_file.h"
#include "tools/rota/report/baseline.h"
#include "tools/rota/status/request.h"

namespace rota::ci {

class Room {
 public:
  explicit Room(Identify& identify) : identify_(identify) {}

  // A GPU, by its UUID, and its size.
  void gpu(const std::string& uuid, std::uint64_t total);
  // Asks rotad.
  Load bytes();
  // By what rotad last said: the GPUs from which the process's memory is evicted when others need it.
  const std::set<std::string>& leaving(std::uint32_t pid) const;

 private:
  Identify& identify_;
  Load totals_;
  std::map<std::int32_t, std::set<std::string>> leaving_;
};

// Of `totals`, by UUID, what is left beside the programs that are not among `own`, by pid. Of one on several GPUs rotad
// says what it has of all together: that counts on each of them.
Load room_of(const Load& totals, const tool::Status& status, const std::vector<std::int32_t>& own);

// By pid: the GPUs on which the process's memory is swapped or Unified Memory.
std::map<std::int32_t, std::set<std::string>> leaving_of(const tool::Status& status);

// What a test is known to need; of one that shares its process, beyond what that has.
Needs needs_of(const report::BaselineEntry& entry);
std::uint64_t sum_of(const Needs& needs);

// Adds what the process has of each GPU now, and what of that stays there although its memory can leave the GPUs
// `leaving`.
void add_used(Load& sum, Load& staying, const report::ProcessAccount& process, const std::set<std::string>& leaving);

}  // namespace rota::ci
