// Processes that this one has started, directly or through others, according to the parents in /proc.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace rota::attempt {

// Makes orphans among the processes that are started from now on children of this process, so that none is lost.
// Returns whether they became that before.
bool adopt_orphans();

// Whether the process is `ancestor` or was started by it. False for one that does not exist.
bool descends_from(pid_t process, pid_t ancestor);

// Descendants of this process, without zombies. Misses processes that are started during the search by others that then
// end.
std::vector<pid_t> descendants();

// "python", or empty if there is no such process.
std::string process_name(pid_t process);

// Ends all descendants: asks them first, and kills those that remain after `patience_ms`. Needs adopt_orphans.
void end_descendants(int patience_ms);

}  // namespace rota::attempt
