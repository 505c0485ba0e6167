// What a rig's tests may have of each GPU: its size less what others use, as far as rotad knows.
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

  // Adds a GPU with its UUID and size.
  void gpu(const std::string& uuid, std::uint64_t total);
  // What the rig's tests may have now. Asks rotad.
  Load bytes();
  // The GPUs from which the process's memory is evicted when others need it, as rotad last said.
  const std::set<std::string>& leaving(std::uint32_t pid) const;

 private:
  Identify& identify_;
  Load totals_;
  std::map<std::int32_t, std::set<std::string>> leaving_;
};

// The part of `totals` (by UUID) that programs other than `own` (by pid) do not use. For a program on several GPUs
// rotad reports its memory on all of them together: that counts on each.
Load room_of(const Load& totals, const tool::Status& status, const std::vector<std::int32_t>& own);

// By pid: the GPUs on which the process's memory is swapped or Unified Memory.
std::map<std::int32_t, std::set<std::string>> leaving_of(const tool::Status& status);

// What a test is known to need; for a test that shares its process, in addition to what the process has.
Needs needs_of(const report::BaselineEntry& entry);
std::uint64_t sum_of(const Needs& needs);

// Adds what the process has on each GPU now, and the part of it that stays there although memory can be evicted from
// the GPUs `leaving`.
void add_used(Load& sum, Load& staying, const report::ProcessAccount& process, const std::set<std::string>& leaving);

}  // namespace rota::ci
