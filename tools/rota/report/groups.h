// What driver functions make and end, from the functions' own names and from the policy (generated/trace_objects.inc),
// so that a new release needs no change here.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "runtime/account/groups.h"
#include "tools/rota/report/account_file.h"

namespace rota::report {

using account::Group;
using account::group_of;

// Whether the result is an answer rather than an error: the work has not finished yet.
bool is_error(std::uint32_t code);

struct ObjectCount {
  std::uint64_t created = 0;
  std::uint64_t ended = 0;
};

// Successful calls that made and ended objects, by kind ("stream", "event"), where fewer were ended than made. Objects
// that ended with their context count as ended. Memory is not included (the account's modules have it), nor are objects
// that end with their parent: nodes of graphs, callbacks.
std::map<std::string, ObjectCount> objects_left(const ProcessAccount& process);

}  // namespace rota::report
