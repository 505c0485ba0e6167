// Which GPUs the driver is told to show in cuInit, where `rota ci` gives a test some.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "runtime/client/admission.h"
#include "scheduler/base/descriptor.h"
#include "tests/unit/runtime/hooks/program.h"

using namespace rota;
using namespace rota::test;
using api::CUresult;

namespace {

struct Start {
  Symbol symbol;
  CUresult (*call)(unsigned flags);
};
const Table<Start> kStart = {{Symbol::k_cuInit, overrides::cuInit}};

// NOLINTBEGIN(concurrency-mt-unsafe): each program is a child process, whose only other thread waits at its socket.
std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "(unset)";
}

void set(const char* name, const std::string& value) {
  setenv(name, value.c_str(), 1);
}
// NOLINTEND(concurrency-mt-unsafe)

// What the driver last found in CUDA_VISIBLE_DEVICES.
std::string shown;

// Plays `rota ci` in the program's process: answers one message, or hangs up if the answer is nothing.
class Rig {
 public:
  explicit Rig(std::string answer) {
    std::string folder = "/tmp/rota-init-XXXXXX";
    EXPECT(mkdtemp(folder.data()) != nullptr);
    folder_ = folder;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path().c_str(), sizeof address.sun_path - 1);
    listening_ = Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT(::bind(listening_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    EXPECT(::listen(listening_.get(), 4) == 0);
    set("ROTA_ADMISSION", path());
    thread_ = std::thread([this, answer = std::move(answer)] {
      connection_ = Descriptor(::accept(listening_.get(), nullptr, nullptr));
      if (!connection_) return;
      if (::recv(connection_.get(), &request_, sizeof request_, 0) == sizeof request_) ++asked_;
      if (answer.empty()) {
        connection_ = {};
      } else {
        EXPECT(::send(connection_.get(), answer.data(), answer.size(), 0) == static_cast<ssize_t>(answer.size()));
      }
    });
  }
  ~Rig() {
    end();
    ::unlink(path().c_str());
    ::rmdir(folder_.c_str());
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  // Called when nobody asks any more. How many asked, and what they inherited.
  int asked() {
    end();
    return asked_;
  }
  std::string inherited() {
    end();
    return request_.inherited;
  }

 private:
  std::string path() const { return folder_ + "/admission"; }
  void end() {
    ::shutdown(listening_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
  }

  std::string folder_;
  Descriptor listening_;
  Descriptor connection_;
  client::AdmissionRequest request_{};
  int asked_ = 0;
  std::thread thread_;
};

struct Case {
  const char* visible;  // null: unset
  const char* known;    // ROTA_CI_GPUS; null: unset
  const char* answer;
  // Then:
  const char* shown;
  int asked;
};

void start(FakeDriver& driver, const Case& each) {
  driver.set<api::cuInit_fn>(Symbol::k_cuInit, [](unsigned) {
    shown = variable("CUDA_VISIBLE_DEVICES");
    return api::CUDA_SUCCESS;
  });
  unsetenv("CUDA_VISIBLE_DEVICES");
  unsetenv("ROTA_CI_GPUS");
  if (each.visible != nullptr) set("CUDA_VISIBLE_DEVICES", each.visible);
  if (each.known != nullptr) set("ROTA_CI_GPUS", each.known);
  Rig rig(each.answer);
  now_testing(std::string("CUDA_VISIBLE_DEVICES=") + (each.visible != nullptr ? each.visible : "(unset)"));
  for (const Start& row : kStart) {
    EXPECT(row.call(0) == api::CUDA_SUCCESS);
    EXPECT(shown == each.shown);
    EXPECT(row.call(0) == api::CUDA_SUCCESS);  // asks no rig
    EXPECT(shown == each.shown);
  }
  EXPECT(rig.asked() == each.asked);
  if (each.asked != 0) EXPECT(rig.inherited() == each.known);
  // What a child of this process will know.
  const bool given = each.asked != 0 && *each.answer != '\0';
  EXPECT(variable("ROTA_CI_GPUS") == (given ? each.shown : each.known != nullptr ? each.known : "(unset)"));
}

}  // namespace

TEST_CASE("the driver is initialized with the GPUs that rota ci gives the test, asked for once") {
  for (const Case& each : {Case{nullptr, "", "GPU-b", "GPU-b", 1}, Case{"0,1", "0,1", "GPU-b,GPU-a", "GPU-b,GPU-a", 1},
                           Case{"GPU-a", "GPU-a", "GPU-a", "GPU-a", 1}}) {
    CHECK(holds({}, [&each](FakeDriver& driver) { start(driver, each); }));
  }
}

TEST_CASE("a program that chose its GPUs itself keeps them, and so does one that nobody answers") {
  for (const Case& each :
       {Case{"1", "", "GPU-b", "1", 0}, Case{"1", "0,1", "GPU-b", "1", 0}, Case{nullptr, "0,1", "GPU-b", "(unset)", 0},
        Case{"", "", "GPU-b", "", 0}, Case{nullptr, nullptr, "GPU-b", "(unset)", 0}, Case{"0", "0", "", "0", 1}}) {
    CHECK(holds({}, [&each](FakeDriver& driver) { start(driver, each); }));
  }
}
