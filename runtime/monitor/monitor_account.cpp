// The monitor's part in this process's account: says which streams have unfinished work when somebody asks what hangs.
#include "generated/driver_real.h"
#include "runtime/account/account.h"
#include "runtime/driver/context.h"
#include "runtime/monitor/monitor.h"

namespace rota::monitor {

namespace {

// This handle means a different stream in each thread.
constexpr std::uint64_t kPerThread = 2;

account::StreamState state_of(api::CUstream stream) {
  switch (real::cuStreamQuery(stream)) {
    case api::CUDA_SUCCESS:
      return account::StreamState::kIdle;
    case api::CUDA_ERROR_NOT_READY:
      return account::StreamState::kUnfinished;
    default:
      return account::StreamState::kFailed;
  }
}

// As in its module; empty if the driver does not tell.
std::string name_of(std::uint64_t function) {
  if (function == 0) return "(graph)";
  const auto* const handle = reinterpret_cast<const void*>(function);
  const char* name = nullptr;
  auto* const kernel = static_cast<api::CUfunction>(const_cast<void*>(handle));
  if (real::cuFuncGetName(&name, kernel) == api::CUDA_SUCCESS && name != nullptr) return name;
  if (real::cuKernelGetName(&name, reinterpret_cast<api::CUkernel>(kernel)) == api::CUDA_SUCCESS && name != nullptr) {
    return name;
  }
  return {};
}

}  // namespace

void Monitor::answer_account() {
  const auto asked = account::streams_asked();
  if (!asked) return;
  std::vector<account::Unfinished> streams;
  for (const account::Launched& last : account::launched()) {
    streams.push_back({last, account::StreamState::kUnknown, name_of(last.function)});
  }
  // Queries while something captures could end the capture.
  if (contexts_.captures() == 0) {
    contexts_.while_all_live([&] {
      const int device = rotad_.gpus().empty() ? 0 : rotad_.gpus().front().device;
      const driver::PushedContext context(contexts_.primary(device));
      for (account::Unfinished& stream : streams) {
        if (stream.last.stream == kPerThread || (stream.last.stream < kPerThread && !context)) continue;
        stream.state = state_of(reinterpret_cast<api::CUstream>(stream.last.stream));
      }
    });
  }
  account::answer_streams(*asked, streams);
}

}  // namespace rota::monitor
