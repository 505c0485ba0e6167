// A snapshot as text that Prometheus and its like read.
#pragma once

#include <string>

#include "scheduler/protocol/snapshot.h"

namespace rota::metrics {

enum class Format {
  kOpenMetrics,  // 1.0: what a scraper asks for
  kPrometheus,   // 0.0.4: what node_exporter's textfile collector reads
};

// As HTTP names it.
const char* content_type(Format format);
// Every sample has the labels `gpu`, `UUID` and `Hostname`, as those of NVIDIA's DCGM exporter have, or those of whole
// machines `Hostname` alone.
std::string exposition(const protocol::Snapshot& snapshot, const std::string& hostname, Format format);

}  // namespace rota::metrics
