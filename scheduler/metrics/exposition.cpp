#include "scheduler/metrics/exposition.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <map>
#include <string_view>
#include <vector>

#include "scheduler/base/printable.h"
#include "scheduler/base/uuid.h"

namespace rota::metrics {

using protocol::Bounds;
using protocol::Gauges;
using protocol::GpuRow;
using protocol::GpuTotals;
using protocol::Histogram;
using protocol::kBuckets;
using protocol::kRefusalReasons;
using protocol::SeriesRow;
using protocol::Snapshot;
using protocol::Totals;

namespace {

// A label's value: what the format cannot hold is escaped, and what a terminal should not show is not shown.
std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char letter : printable(text)) {
    if (letter == '"' || letter == '\\') result += '\\';
    result += letter;
  }
  return result + '"';
}

// As OpenMetrics wants the bounds of buckets.
std::string number(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? fmt::format("{:.1f}", value) : fmt::format("{}", value);
}

std::string seconds(std::uint64_t ns) {
  return number(static_cast<double>(ns) / 1e9);
}

class Text {
 public:
  explicit Text(Format format) : format_(format) {}

  // What follows up to the next one are its samples.
  void family(const char* name, const char* type, const char* help, const char* unit = "") {
    name_ = name;
    counts_ = std::string_view(type) == "counter";
    const bool info = std::string_view(type) == "info";
    const bool open = format_ == Format::kOpenMetrics;
    sample_ = name_ + (counts_ ? "_total" : info ? "_info" : "");
    const std::string& headed = open ? name_ : sample_;
    text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", headed, help, headed, info && !open ? "gauge" : type);
    if (open && *unit != '\0') text_ += fmt::format("# UNIT {} {}\n", headed, unit);
  }
  void sample(const std::string& labels, std::uint64_t value) {
    text_ += fmt::format("{}{{{}}} {}\n", sample_, labels, value);
  }
  void sample(const std::string& labels, const std::string& value) {
    text_ += fmt::format("{}{{{}}} {}\n", sample_, labels, value);
  }
  void histogram(const std::string& labels, const Histogram& histogram, const Bounds& bounds) {
    std::uint64_t so_far = 0;
    for (std::size_t i = 0; i <= kBuckets; ++i) {
      so_far += histogram.counts[i];
      text_ += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name_, labels, i < kBuckets ? seconds(bounds[i]) : "+Inf",
                           so_far);
    }
    text_ += fmt::format("{}_count{{{}}} {}\n{}_sum{{{}}} {}\n", name_, labels, so_far, name_, labels,
                         seconds(histogram.sum_ns));
  }
  std::string finish() {
    if (format_ == Format::kOpenMetrics) text_ += "# EOF\n";
    return std::move(text_);
  }

 private:
  const Format format_;
  std::string text_;
  std::string name_;
  std::string sample_;
  bool counts_ = false;
};

// The labels of each GPU, and of each series on one.
struct Labels {
  Labels(const Snapshot& snapshot, const std::string& hostname) : host("Hostname=" + quoted(hostname)) {
    for (const GpuTotals& gpu : snapshot.gpu_totals) add(gpu.gpu, gpu.number);
    for (const GpuRow& gpu : snapshot.gpus) add(gpu.uuid, gpu.number);
    for (const SeriesRow& row : snapshot.series) {
      const auto found = gpus.find(row.gpu);
      series.push_back(fmt::format("{},user={},session={},cgroup={},container={}",
                                   found == gpus.end() ? "gpu=\"\"," + host : found->second, quoted(row.key.user),
                                   quoted(row.key.session), quoted(row.key.cgroup), quoted(row.key.container)));
    }
  }
  const std::string& of(const Uuid& gpu) const { return gpus.at(gpu); }

  const std::string host;
  std::map<Uuid, std::string> gpus;
  std::vector<std::string> series;  // as the snapshot's

 private:
  void add(const Uuid& gpu, std::uint32_t number) {
    gpus[gpu] = fmt::format("gpu=\"{}\",UUID=\"{}\",{}", number, uuid_text(gpu), host);
  }
};

void write_machine(Text& text, const Snapshot& snapshot, const Labels& labels) {
  text.family("rota_build", "info", "The rotad that serves this machine.");
  text.sample(fmt::format("{},version={}", labels.host, quoted(snapshot.daemon.rota_version)), 1);
  text.family("rota_grants", "counter", "Times that a program was granted its GPUs.");
  text.sample(labels.host, snapshot.daemon.grants);
  text.family("rota_clients", "gauge", "Programs that are connected, whether or not they use a GPU.");
  text.sample(labels.host, snapshot.programs.size());
}

void write_gpus(Text& text, const Snapshot& snapshot, const Labels& labels) {
  const auto gauge = [&](const char* name, const char* help, const char* unit, auto value) {
    text.family(name, "gauge", help, unit);
    for (const GpuRow& gpu : snapshot.gpus) text.sample(labels.of(gpu.uuid), std::uint64_t{gpu.*value});
  };
  gauge("rota_gpu_memory_total_bytes", "Memory of the GPU, of each GPU that programs use.", "bytes",
        &GpuRow::total_bytes);
  text.family("rota_gpu_memory_used_bytes", "gauge", "Memory in use, as the driver counts it for all processes.",
              "bytes");
  for (const GpuRow& gpu : snapshot.gpus) {
    if (gpu.measured != 0) text.sample(labels.of(gpu.uuid), gpu.driver_used_bytes);
  }
  gauge("rota_gpu_unmanaged_bytes", "Memory in use by programs without rota.", "bytes", &GpuRow::outside_bytes);
  gauge("rota_gpu_holders", "Programs that hold the GPU.", "", &GpuRow::holders);
  gauge("rota_gpu_waiters", "Programs that wait for the GPU.", "", &GpuRow::waiters);
  text.family("rota_handed_over_bytes", "counter", "GPU memory that went from program to program without the driver.",
              "bytes");
  for (const GpuTotals& gpu : snapshot.gpu_totals) text.sample(labels.of(gpu.gpu), gpu.handed_over_bytes);
  const auto histogram = [&](const char* name, const char* help, const Bounds& bounds, Histogram GpuTotals::* of) {
    text.family(name, "histogram", help, "seconds");
    for (const GpuTotals& gpu : snapshot.gpu_totals) text.histogram(labels.of(gpu.gpu), gpu.*of, bounds);
  };
  histogram("rota_wait_seconds", "How long programs waited for a grant of the GPU.", protocol::kWaitBounds,
            &GpuTotals::waits);
  histogram("rota_hand_over_seconds", "From a grant until its holder ran.", protocol::kHandOverBounds,
            &GpuTotals::hand_overs);
  text.family("rota_move_seconds", "histogram", "How long memory took to move to the host (out) and back (in).",
              "seconds");
  for (const GpuTotals& gpu : snapshot.gpu_totals) {
    text.histogram(labels.of(gpu.gpu) + ",direction=\"out\"", gpu.moves_out, protocol::kMoveBounds);
    text.histogram(labels.of(gpu.gpu) + ",direction=\"in\"", gpu.moves_in, protocol::kMoveBounds);
  }
}

void write_series(Text& text, const Snapshot& snapshot, const Labels& labels) {
  const auto for_each = [&](const auto& visit) {
    for (std::size_t i = 0; i < snapshot.series.size(); ++i) visit(labels.series[i], snapshot.series[i]);
  };
  const auto counter = [&](const char* name, const char* help, const char* unit, const auto& value) {
    text.family(name, "counter", help, unit);
    for_each([&](const std::string& of, const SeriesRow& row) { text.sample(of, value(row.totals)); });
  };
  counter("rota_held_seconds", "How long programs have held the GPU.", "seconds",
          [](const Totals& totals) { return seconds(totals.held_ns); });
  counter("rota_waited_seconds", "How long programs have waited for the GPU without holding it.", "seconds",
          [](const Totals& totals) { return seconds(totals.waited_ns); });
  counter("rota_moved_out_bytes", "GPU memory copied to the host when it was evicted.", "bytes",
          [](const Totals& totals) { return totals.out_bytes; });
  counter("rota_moved_in_bytes", "GPU memory copied back from the host when it was restored.", "bytes",
          [](const Totals& totals) { return totals.in_bytes; });
  counter("rota_revocations", "Turns that were revoked because a program did not give the GPU back in time.", "",
          [](const Totals& totals) { return totals.revocations; });
  text.family("rota_refusals", "counter", "Allocations and contexts that were refused, by reason.");
  for_each([&](const std::string& of, const SeriesRow& row) {
    for (std::size_t i = 0; i < kRefusalReasons.size(); ++i) {
      if (row.totals.refusals[i] == 0) continue;
      text.sample(fmt::format("{},reason=\"{}\"", of, kRefusalReasons[i]), row.totals.refusals[i]);
    }
  });
  const auto gauge = [&](const char* name, const char* help, const char* unit, const auto& value) {
    text.family(name, "gauge", help, unit);
    for_each([&](const std::string& of, const SeriesRow& row) { text.sample(of, std::uint64_t{value(row.now)}); });
  };
  gauge("rota_programs", "Programs that use the GPU.", "", [](const Gauges& now) { return now.programs; });
  gauge("rota_allocated_bytes", "GPU memory that programs have allocated.", "bytes",
        [](const Gauges& now) { return now.allocated_bytes; });
  text.family("rota_resident_bytes", "gauge",
              "The part of it that is on the GPU. Absent where Unified Memory makes it unknown.", "bytes");
  for_each([&](const std::string& of, const SeriesRow& row) {
    if (row.now.all_resident_known) text.sample(of, row.now.resident_bytes);
  });
  text.family(
      "rota_pinned_bytes", "gauge",
      "The part of it that cannot be evicted: native, pinned by what reaches it, all of a process, or temporary.",
      "bytes");
  for_each([&](const std::string& of, const SeriesRow& row) {
    text.sample(of + ",reason=\"native\"", row.now.native_bytes);
    for (std::size_t why = 0; why < protocol::kPins; ++why) {
      if (row.now.pinned_bytes[why] == 0) continue;
      text.sample(fmt::format("{},reason=\"{}\"", of, protocol::kPinNames[why]), row.now.pinned_bytes[why]);
    }
    text.sample(of + ",reason=\"process\"", row.now.process_bytes);
    text.sample(of + ",reason=\"temporary\"", row.now.for_now_bytes);
  });
}

}  // namespace

const char* content_type(Format format) {
  return format == Format::kOpenMetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                        : "text/plain; version=0.0.4; charset=utf-8";
}

std::string exposition(const Snapshot& snapshot, const std::string& hostname, Format format) {
  const Labels labels(snapshot, hostname);
  Text text(format);
  write_machine(text, snapshot, labels);
  write_gpus(text, snapshot, labels);
  write_series(text, snapshot, labels);
  return text.finish();
}

}  // namespace rota::metrics
