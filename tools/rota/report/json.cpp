// The report as JSON. README.md documents its members; their names do not change.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/rota/report/outputs.h"
#include "tools/rota/report/test_gpus.h"
#include "tools/rota/report/track.h"

namespace rota::report {
namespace {

using Object = nlohmann::ordered_json;

constexpr int kReportVersion = 1;
constexpr std::size_t kJobParts = 600;
// How many parts the timeline of one process has. The HTML page contains all timelines: the more processes, the fewer
// parts each has, so that a browser also opens the page of a job of thousands of processes at once.
std::size_t process_parts(std::size_t processes) {
  constexpr std::size_t kMost = 120;
  constexpr std::size_t kFewest = 12;
  constexpr std::size_t kAll = 24'000;
  return std::clamp(kAll / std::max<std::size_t>(processes, 1), kFewest, kMost);
}

Object use_object(const Use& use) {
  Object object = {{"peak_bytes", use.peak_bytes},
                   {"peak_at_most_bytes", use.peak_at_most_bytes},
                   {"reserved_peak_bytes", use.reserved_peak_bytes},
                   {"gpu_ns", use.gpu_ns},
                   {"waited_ns", use.waited_ns},
                   {"launches", use.launches},
                   {"copies", use.copies},
                   {"copied_bytes", use.copied_bytes},
                   {"synchronizations", use.synchronizations},
                   {"calls", use.calls},
                   {"errors", use.errors},
                   {"live", use.live},
                   {"live_bytes", use.live_bytes}};
  if (!use.has_functions) return object;
  object["functions"] = Object::object();
  for (const auto& [name, calls] : use.functions) object["functions"][name] = calls;
  object["failures"] = Object::array();
  for (const auto& [key, calls] : use.failures) {
    object["failures"].push_back({{"function", key.first}, {"error", key.second}, {"calls", calls}});
  }
  return object;
}

Object track_object(const Track& track) {
  const auto rounded = [](const std::vector<double>& values) {
    Object array = Object::array();
    for (const double value : values)
      array.push_back(static_cast<double>(static_cast<std::int64_t>(value * 1000)) / 1000);
    return array;
  };
  return {{"begin_ns", track.begin_ns},
          {"part_ns", track.part_ns},
          {"bytes", track.bytes},
          {"waiting", rounded(track.waiting)},
          {"busy", rounded(track.busy)}};
}

const char* ending_name(Ending ending) {
  return ending == Ending::kExited ? "exited" : ending == Ending::kRunning ? "running" : "killed";
}

const char* reason_name(account::OutOfMemory reason) {
  switch (reason) {
    case account::OutOfMemory::kDriver:
      return "driver";
    case account::OutOfMemory::kFull:
      return "full";
    case account::OutOfMemory::kLimit:
      return "limit";
    case account::OutOfMemory::kTooLarge:
      return "too-large";
    case account::OutOfMemory::kNone:
      break;
  }
  return nullptr;
}

Object gpu_object(const GpuRecord& gpu) {
  Object kinds = Object::object();
  for (std::size_t i = 0; i < account::kMemoryKinds; ++i) {
    if (gpu.kind_peak_bytes[i] != 0) kinds[account::kMemoryKindNames[i]] = gpu.kind_peak_bytes[i];
  }
  return {{"uuid", gpu.uuid},
          {"name", gpu.name},
          {"total_bytes", gpu.total_bytes},
          {"peak_bytes", gpu.peak_bytes},
          {"reserved_peak_bytes", gpu.reserved_peak_bytes},
          {"kinds", std::move(kinds)}};
}

Object process_object(const Report& report, const ProcessReport& process) {
  const ProcessAccount& account = process.account;
  Object object = {{"id", account.id},
                   {"pid", account.self.pid},
                   {"command", account.self.command},
                   {"folder", account.self.folder},
                   {"begin_ns", span_of(process).first},
                   {"end_ns", span_of(process).second},
                   {"end", ending_name(account.ending)},
                   {"ending", process.ending},
                   {"hosts_tests", process.hosts_tests}};
  object["parent"] = account.ancestors.empty() ? Object(nullptr) : Object(account.ancestors.front().id());
  object["tests"] = process.test;
  if (process.end && process.end->signal != 0) object["signal"] = process.end->signal;
  if (process.end && process.end->signal == 0) object["exit_code"] = process.end->exit_code;
  if (const char* reason = reason_name(account.out_of_memory)) object["out_of_memory"] = reason;
  object["use"] = use_object(process.use);
  const auto copies = [](const CopyCount& count) { return Object{{"calls", count.calls}, {"bytes", count.bytes}}; };
  object["copies"] = {{"to_device", copies(account.to_device)},
                      {"to_host", copies(account.to_host)},
                      {"on_device", copies(account.on_device)},
                      {"by_address", copies(account.by_address)}};
  object["gpus"] = Object::array();
  for (const GpuRecord& gpu : account.gpus) object["gpus"].push_back(gpu_object(gpu));
  object["modules"] = Object::array();
  for (const ModuleRecord& module : account.modules) {
    const Suppression* const known = report.suppressions.find(module.path);
    Object made = {{"path", module.path},
                   {"allocations", module.allocations},
                   {"live", module.live},
                   {"live_bytes", module.live_bytes},
                   {"suppressed", known != nullptr}};
    if (known != nullptr) made["reason"] = known->reason;
    object["modules"].push_back(std::move(made));
  }
  object["objects"] = Object::array();
  for (const auto& [kind, count] : process.objects) {
    object["objects"].push_back({{"kind", kind}, {"created", count.created}, {"destroyed", count.ended}});
  }
  if (account.ending != Ending::kExited && !account.inside.empty()) {
    object["inside"] = Object::array();
    for (const ThreadRecord& thread : account.inside) {
      object["inside"].push_back({{"thread", thread.tid}, {"function", thread.function}, {"at_gate", thread.at_gate}});
    }
  }
  object["notes"] = account.notes;
  const auto [begin, end] = span_of(process);
  object["timeline"] = track_object(track_of({&process}, begin, end, process_parts(report.model.processes.size())));
  return object;
}

Object test_object(const Model& model, const TestReport& test) {
  const TestRecord& record = test.record;
  Object object = {{"name", record.name},       {"runner", record.runner},       {"attempt", record.attempt},
                   {"outcome", record.outcome}, {"message", record.message},     {"begin_ns", record.begin_ns},
                   {"end_ns", record.end_ns},   {"ambiguous", record.ambiguous}, {"folder", record.folder},
                   {"command", record.command}, {"processes", test.processes}};
  object["host"] = test.host ? Object(*test.host) : Object(nullptr);
  object["gpus"] = gpus_of(model, test);
  if (!record.within.empty()) {
    object["base_bytes"] = test.base_bytes;
    object["growth_bytes"] = test.growth_bytes;
  }
  object["use"] = use_object(test.use);
  return object;
}

}  // namespace

nlohmann::ordered_json json_report(const Report& report) {
  const Model& model = report.model;
  const JobRecord& job = model.job;
  Object object = {{"version", kReportVersion}};
  object["job"] = {{"name", job.name},         {"command", job.command}, {"folder", job.folder}, {"host", job.host},
                   {"begin_ns", job.begin_ns}, {"end_ns", job.end_ns},   {"rota", job.rota}};
  object["job"]["exit_code"] = job.exit_code ? Object(*job.exit_code) : Object(nullptr);
  object["total"] = use_object(model.total);
  object["tests"] = Object::array();
  for (const TestReport& test : model.tests) object["tests"].push_back(test_object(model, test));
  object["processes"] = Object::array();
  std::vector<const ProcessReport*> all;
  for (const ProcessReport& process : model.processes) {
    object["processes"].push_back(process_object(report, process));
    all.push_back(&process);
  }
  object["findings"] = Object::array();
  for (const Finding& finding : report.judgement.findings) {
    Object made = {{"kind", finding.kind}, {"text", finding.text}};
    if (!finding.details.empty()) made["details"] = finding.details;
    made["test"] = finding.test ? Object(*finding.test) : Object(nullptr);
    made["process"] = finding.process ? Object(*finding.process) : Object(nullptr);
    object["findings"].push_back(std::move(made));
  }
  object["left_running"] = Object::array();
  for (const LeftRecord& left : model.left) object["left_running"].push_back({{"id", left.id}, {"name", left.name}});
  object["notes"] = report.judgement.notes;
  object["problems"] = model.problems;
  const auto [begin, end] = span_of(model);
  object["timeline"] = track_object(track_of(all, begin, end, kJobParts));
  return object;
}

}  // namespace rota::report
