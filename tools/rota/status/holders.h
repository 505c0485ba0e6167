// Which rotads of this machine have GPUs, by asking at the names of the GPUs' locks (protocol/lock_door.h):
// `rota status` shows also those that it does not query. A stopped rotad does not answer, one in another network
// namespace holds its names there, and the process that has locked a file may not be a rotad. Those are found by what
// the kernel lists about the name, in the namespaces of all visible processes, or by the lock of the file.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace rota::tool {

enum class Holding {
  kAnswers,    // and says who it is
  kSilent,     // it listens at the lock's name, and does not answer
  kElsewhere,  // a rotad in another network namespace, known by its file or by its name there
  kForeign     // the process that has locked the file is no rotad, or is not known
};

struct GpuHolder {
  std::string gpu{};   // its UUID
  std::string name{};  // the GPU's
  pid_t pid = 0;       // 0: in another pid namespace
  uid_t uid = 0;
  std::string user{};
  std::string socket{};
  std::uint32_t programs = 0;
  bool machine = false;  // the rotad for all users
  Holding how = Holding::kAnswers;
  std::string file{};  // the locked one, if it does not answer and there is one
  char stopped = 0;    // protocol::stopped_state()
};

// Takes at most half a second. `known`: UUIDs of GPUs, in addition to those that lock files and the kernel's driver
// name; the name of a lock does not tell its GPU.
std::vector<GpuHolder> find_holders(const std::vector<std::string>& known = {});

// Removes the rotad that was asked: it is one of these processes, or serves these GPUs.
void leave_out(std::vector<GpuHolder>& holders, std::uint64_t pid, const std::string& socket,
               const std::vector<std::string>& gpus);

// The lock files of these GPUs that something has removed while the names are held: rotads in other network namespaces
// no longer see that the GPUs are taken. Files that are created again within a second do not count.
std::vector<std::string> missing_locks(const std::vector<std::string>& gpus);

// What is wrong with a rotad that does not answer, and what helps.
struct SilentText {
  std::string what;
  std::string remedy;
};
SilentText silent_text(const GpuHolder& holder);
// One line: who has the GPU, and what helps programs that do not reach that rotad.
std::string holder_text(const GpuHolder& holder);

}  // namespace rota::tool
