// Entries for the journal.
#include "scheduler/server/journal.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <string>

namespace rota::server {
namespace {

TEST_CASE("an entry has the line, its level and its fields, a value with a newline after its length") {
  CHECK(journal_entry(4, "a line", {{"ROTA_GPU", "3"}}) ==
        "MESSAGE=a line\nPRIORITY=4\nSYSLOG_IDENTIFIER=rotad\nROTA_GPU=3\n");
  const std::string entry = journal_entry(6, "one\ntwo", {});
  CHECK(entry.starts_with(std::string("MESSAGE\n\x07\0\0\0\0\0\0\0one\ntwo\nPRIORITY=6\n", 35)));
}

TEST_CASE("entries are datagrams, and without a journal, or one that does not read, a line has to go another way") {
  std::string folder = "/tmp/rota-journal-XXXXXX";
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const std::string path = folder + "/socket";
  Journal journal(path);
  CHECK_FALSE(journal.send("MESSAGE=nobody\n"));
  const Descriptor reader(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  REQUIRE(bind(reader.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  CHECK(journal.send("MESSAGE=one\n"));
  CHECK(journal.send("MESSAGE=two\n"));
  std::array<char, 64> bytes{};
  CHECK(recv(reader.get(), bytes.data(), bytes.size(), 0) == 12);
  CHECK(std::string(bytes.data()) == "MESSAGE=one\n");
  int taken = 0;
  while (taken < 100000 && journal.send("MESSAGE=more\n")) ++taken;
  CHECK(taken < 100000);
  unlink(path.c_str());
  rmdir(folder.c_str());
  CHECK_FALSE(Journal(folder + std::string(200, 'x')).send("MESSAGE=far\n"));
}

}  // namespace
}  // namespace rota::server
