// Serves figures to Prometheus over HTTP, and writes them into a file, on a thread of its own. It has a copy of a
// snapshot, and asks for a new one when figures are wanted and its own is older than a second: so rotad's loop never
// waits for a scraper, and does nothing for metrics while there is none.
//
// HTTP is what a scraper needs and no more: one GET for each connection. Libraries for it, such as cpp-httplib, occupy
// one of their few threads for each connection, so that peers that say nothing keep others out, and Debian has that one
// as a shared library alone, which rota's packages cannot rely on.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "scheduler/base/result.h"
#include "scheduler/protocol/snapshot.h"
#include "scheduler/server/config.h"

namespace rota::server {

class MetricsServer {
 public:
  // Called on the server's thread: asks that publish() be called soon.
  using Ask = std::function<void()>;

  // Listens where the settings say. The error says what prevents it, and what helps.
  static Result<std::unique_ptr<MetricsServer>> open(const MetricsSettings& settings, Ask ask);
  // Starts the thread; false: it cannot be started.
  bool start();
  // Other settings from now on. Peers that have connected are served, whichever address they used. With an error, as of
  // open(), everything stays as it was.
  Result<bool> change(const MetricsSettings& settings);
  // Removes the file. Waits for the thread for two seconds at most: a file system may hang.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // Any thread. Null: none could be made.
  void publish(std::shared_ptr<const protocol::Snapshot> snapshot);

 private:
  struct Shared;
  struct Peer;
  MetricsServer(std::shared_ptr<Shared> shared, std::string listens_at)
      : shared_(std::move(shared)), listens_at_(std::move(listens_at)) {}

  const std::shared_ptr<Shared> shared_;
  std::string listens_at_;  // as the settings say it
  std::thread thread_;
};

}  // namespace rota::server
