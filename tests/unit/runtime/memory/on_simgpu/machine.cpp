#include "tests/unit/runtime/memory/on_simgpu/machine.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "generated/driver_real.h"
#include "runtime/core/attach.h"
#include "tests/unit/runtime/fake_preload.h"

namespace rota::test {

Cuda cu{};
std::string from_neighbour;

namespace {

std::string report;
Mode current_mode = Mode::kBare;

CUresult lacking() {
  return CUDA_ERROR_NOT_FOUND;
}

void set_environment(const Machine& machine, const std::string& folder) {
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): one thread
  };
  set("ROTA_SIM_STATE", folder + "/state");
  set("ROTA_SIM_MEMORY", std::to_string(machine.gpu_bytes));
  set("ROTA_SIM_CONTEXT_BYTES", std::to_string(kContextBytes));
  set("ROTA_SIM_TIME_SCALE", "0");
  set("ROTA_SIM_GPUS", "2");
  set("ROTA_SIM_KERNELS", SIMGPU_KERNELS);
  set("ROTA_SOCKET", folder + "/no-rotad");
  set("ROTA_MEMORY", machine.mode == Mode::kManaged ? "managed" : machine.mode == Mode::kSwap ? "swap" : "native");
  set("ROTA_GPU_MEM_LIMIT", machine.limit);
  if (!machine.profile.empty()) {
    const std::string file = folder + "/card.toml";
    std::ofstream(file) << machine.profile;
    set("ROTA_SIM_PROFILE", file);
  }
}

// The driver, with the core in front of it in all modes but kBare.
void load(const Machine& machine) {
  void* const library = dlopen(SIMGPU_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::abort();
  FakePreload& preload = FakePreload::fresh();
  for (std::size_t index = 0; index < kSymbolCount; ++index) {
    const auto symbol = static_cast<Symbol>(index);
    void* function = dlsym(library, name_of(symbol));
    preload.available[index] = function != nullptr ? 1 : 0;
    if (function != nullptr && machine.replace) {
      if (void* const other = machine.replace(symbol, function)) function = other;
    }
    preload.real[index] = function != nullptr ? function : reinterpret_cast<void*>(&lacking);
    preload.slots[index] = preload.real[index];  // what attach() leaves alone
  }
  if (machine.mode != Mode::kBare && interpose::attach(preload.attachment, nullptr) != 0) std::abort();
#define ROTA_SYMBOL(name) cu.name = reinterpret_cast<decltype(cu.name)>(preload.slot_of(Symbol::k_##name));
#include "generated/driver_symbols.inc"
#undef ROTA_SYMBOL
}

// Reads until the other side has closed.
std::string read_all(int file) {
  std::string text;
  char buffer[4096];
  for (ssize_t length = 0; (length = read(file, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(length));
  }
  close(file);
  return text;
}

void write_all(int file, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = write(file, text.data() + done, text.size() - done);
    if (written <= 0) return;
    done += static_cast<std::size_t>(written);
  }
}

struct Pipe {
  Pipe() {
    if (pipe(ends) != 0) std::abort();
  }
  int ends[2] = {-1, -1};
};

// Runs a separate process on the same machine and reads its answer. It stays until this process has ended.
void run_neighbour(const Machine& machine) {
  Pipe answer;
  Pipe life;  // closed by our end
  const pid_t process = fork();
  if (process == 0) {
    close(answer.ends[0]);
    close(life.ends[1]);
    load({.mode = Mode::kBare, .limit = "", .replace = {}, .neighbour = {}});
    cu.cuInit(0);
    write_all(answer.ends[1], machine.neighbour());
    close(answer.ends[1]);
    read_all(life.ends[0]);
    _exit(0);
  }
  close(answer.ends[1]);
  close(life.ends[0]);
  from_neighbour = read_all(answer.ends[0]);
}

std::string how_it_ended(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) return "no child\n";
  if (WIFSIGNALED(status)) return fmt::format("killed by signal {}\n", WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : fmt::format("exit code {}\n", WEXITSTATUS(status));
}

}  // namespace

const char* name_of(Mode mode) {
  switch (mode) {
    case Mode::kBare:
      return "without rota";
    case Mode::kNative:
      return "ROTA_MEMORY=native";
    case Mode::kSwap:
      return "ROTA_MEMORY=swap";
    case Mode::kManaged:
      return "ROTA_MEMORY=managed";
  }
  return "";
}

std::string on_simgpu(const Machine& machine, const std::function<void()>& program) {
  char folder[] = "/tmp/rota-paths-XXXXXX";
  if (mkdtemp(folder) == nullptr) std::abort();
  Pipe answer;
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    close(answer.ends[0]);
    current_mode = machine.mode;
    set_environment(machine, folder);
    if (machine.neighbour) run_neighbour(machine);
    load(machine);
    if (cu.cuInit(0) == CUDA_SUCCESS) {
      program();
    } else {
      note("cuInit fails");
    }
    write_all(answer.ends[1], report);
    _exit(0);
  }
  close(answer.ends[1]);
  std::string text = read_all(answer.ends[0]);
  text += how_it_ended(child);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return text;
}

Mode mode() {
  return current_mode;
}

void note(const std::string& line) {
  report += line + "\n";
}

bool expect(bool holds, const std::string& text, const char* file, int line) {
  if (!holds) note(fmt::format("{}:{}: {}: not so: {}", file, line, name_of(current_mode), text));
  return holds;
}

bool expect_result(CUresult expected, CUresult result, const char* text, const char* file, int line) {
  return expect(result == expected,
                fmt::format("{} answers {}, not {}", text, static_cast<int>(result), static_cast<int>(expected)), file,
                line);
}

CUcontext enter(int device) {
  CUcontext context = nullptr;
  EXPECT_OK(cu.cuDevicePrimaryCtxRetain(&context, device));
  EXPECT_OK(cu.cuCtxSetCurrent(context));
  return context;
}

std::uint64_t charged(int device) {
  if (current_mode == Mode::kBare) return 0;
  // Asked as the program asks, so that memory whose free a stream has passed meanwhile counts as free.
  runtime().memory.shown(device, kGpuBytes, kGpuBytes);
  return runtime().ledger.live_bytes(device);
}

bool charged_exactly(std::uint64_t gpu0, std::uint64_t gpu1) {
  if (current_mode == Mode::kBare) return true;
  bool exactly = charged(0) == gpu0 && charged(1) == gpu1;
  for (int device = 2; device < memory::kMaxDevices; ++device) exactly &= runtime().ledger.live_bytes(device) == 0;
  if (!exactly) note(fmt::format("charged are {} and {} bytes, not {} and {}", charged(0), charged(1), gpu0, gpu1));
  return exactly;
}

std::size_t live_entries() {
  using memory::Backing;
  using memory::Route;
  // Usually there is no entry at all, and each kind costs a walk through the whole ledger.
  if (current_mode == Mode::kBare || runtime().ledger.entries() == 0) return 0;
  std::size_t count = 0;
  for (int device = memory::kNobody; device < 2; ++device) {
    for (int route = 0; route <= static_cast<int>(Route::kGraph); ++route) {
      for (int backing = 0; backing <= static_cast<int>(Backing::kHost); ++backing) {
        const memory::Kind kind{static_cast<Route>(route), static_cast<Backing>(backing)};
        count += runtime().ledger.list(device, kind).size();
      }
    }
  }
  return count;
}

void expect_empty_books(const char* file, int line) {
  expect(charged_exactly(0, 0), "nothing is charged", file, line);
  expect(live_entries() == 0, fmt::format("no entry lives ({} do)", live_entries()), file, line);
}

}  // namespace rota::test
