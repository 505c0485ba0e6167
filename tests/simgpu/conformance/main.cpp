// conformance: runs the rules, each in a process of its own, and says which hold.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "tests/simgpu/conformance/process.h"
#include "tests/simgpu/conformance/runner.h"

namespace conformance {
namespace {

constexpr const char* kUsage =
    R"(conformance [--area A]... [--rule NAME]... [--every N] [--jobs N] [--kernels FILE] [what to do]

Runs the rules on the CUDA driver that dlopen finds as libcuda.so.1 (ROTA_REAL_LIBCUDA names another file). A line per
rule; exits 1 if one fails.

  --list           what rules there are: area, name, mutation and statement, separated by tabs
  --mutations      each rule must fail on simgpu under its mutation; lists those that survive
  --table          the rules by area as a Markdown table
  --record FILE    also writes area, name and result of each rule to FILE, separated by tabs
  --skip-without-gpu
                   exits 77 where the machine has no NVIDIA driver
  --area A, --rule NAME (or AREA.NAME)
                   only these; may be given several times
  --every N        of those every Nth, a sample
  --jobs N         at once; default: 2
  --limit SECONDS  for one rule; default: 30
  --kernels FILE   module with the kernels of tests/programs/kernels.cu (PTX or cubin); default: kernels.ptx beside this
                   program, or a stub, which is enough for simgpu
)";

struct Options {
  std::set<std::string> areas;
  std::set<std::string> names;
  unsigned every = 1;
  unsigned jobs = 2;
  std::chrono::seconds limit{30};
  bool list = false;
  bool mutations = false;
  bool table = false;
  bool skip_without_gpu = false;
  std::string record;
};

[[noreturn]] void usage_error(const std::string& text) {
  std::fprintf(stderr, "conformance: %s; --help says what there is\n", text.c_str());
  std::exit(2);  // NOLINT(concurrency-mt-unsafe)
}

unsigned number(const std::string& option, const std::string& text) {
  unsigned value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || *end != '\0' || value == 0) usage_error(option + " " + text + " is no number above 0");
  return value;
}

enum class Outcome { kOk, kFailed, kSkipped };
constexpr const char* kOutcomeNames[] = {"ok", "FAIL", "skip"};

struct Result {
  Outcome outcome = Outcome::kFailed;
  std::string why;
  std::string output;  // of the rule's processes
};

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The folder for what the rules' processes write; removed at the end.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "conformance-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) usage_error("cannot make a folder in " + name);
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string folder() { return path_ + "/" + std::to_string(next_++); }

 private:
  std::string path_;
  std::atomic<unsigned> next_{0};
};

std::string full_name(const Rule& rule) {
  return std::string(rule.area) + "." + rule.name;
}

// The first process that failed says why; a process that could not say so ended in another way.
Result judge(const Ended& ended, const std::string& said, std::string output, std::chrono::seconds limit) {
  size_t at = said.starts_with("FAIL ") ? 0 : said.find("\nFAIL ");
  if (at != std::string::npos) {
    at = said.find("FAIL ", at) + 5;
    return {Outcome::kFailed, said.substr(at, said.find('\n', at) - at), std::move(output)};
  }
  if (ended.timed_out) {
    return {Outcome::kFailed, "timed out after " + std::to_string(limit.count()) + " s", std::move(output)};
  }
  if (ended.signal != 0) {
    // glibc has its abbreviation only since 2.32.
    return {Outcome::kFailed, std::string("crashed: ") + strsignal(ended.signal), std::move(output)};
  }
  if (ended.status == kSkipped && said.starts_with("skip ")) {
    return {Outcome::kSkipped, said.substr(5, said.find('\n') - 5), std::move(output)};
  }
  if (ended.status == 0 && said == "ok\n") return {Outcome::kOk, "", std::move(output)};
  return {Outcome::kFailed, "ended with exit status " + std::to_string(ended.status), std::move(output)};
}

Result run(const Rule& rule, const std::string& mutation, Scratch& scratch, std::chrono::seconds limit) {
  std::string folder = scratch.folder();
  std::filesystem::create_directory(folder);
  // A machine of its own for each rule: rules that run at once do not share simgpu's memory.
  std::vector<std::string> environment = {"ROTA_SIM_STATE=" + folder + "/state",
                                          std::string(kResultVariable) + "=" + folder + "/result",
                                          // A kernel that is loaded late could wait for one that runs.
                                          "CUDA_MODULE_LOADING=EAGER"};
  if (!mutation.empty()) environment.push_back("ROTA_SIM_MUTATIONS=" + mutation);
  Ended ended = run_process({"conformance", "--run-one", full_name(rule)}, environment, folder + "/output", limit);
  Result result = judge(ended, content_of(folder + "/result"), content_of(folder + "/output"), limit);
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return result;
}

// Calls work(i) for all i below count, on so many threads.
template <class Work>
void in_parallel(size_t count, unsigned jobs, Work work) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned job = 0; job < std::min<size_t>(jobs, count); ++job) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < count; i = next++) work(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

struct Counts {
  unsigned by_outcome[3] = {};
  std::set<std::string> mutations;
  unsigned all() const { return by_outcome[0] + by_outcome[1] + by_outcome[2]; }
};

void print_indented(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    std::printf("       %s\n", text.substr(at, end - at).c_str());
    at = end + 1;
  }
}

void print_table(const std::map<std::string, Counts>& areas) {
  Counts total;
  unsigned mutations = 0;
  std::printf("| area | rules | hold | skipped | mutations |\n|---|---|---|---|---|\n");
  for (const auto& [area, counts] : areas) {
    std::printf("| %s | %u | %u | %u | %zu |\n", area.c_str(), counts.all(), counts.by_outcome[0], counts.by_outcome[2],
                counts.mutations.size());
    for (size_t i = 0; i < 3; ++i) total.by_outcome[i] += counts.by_outcome[i];
    mutations += static_cast<unsigned>(counts.mutations.size());
  }
  std::printf("| all | %u | %u | %u | %u |\n", total.all(), total.by_outcome[0], total.by_outcome[2], mutations);
}

int run_rules(const std::vector<Rule>& chosen, const Options& options) {
  Scratch scratch;
  std::vector<Result> results(chosen.size());
  std::mutex output;
  in_parallel(chosen.size(), options.jobs, [&](size_t i) {
    results[i] = run(chosen[i], "", scratch, options.limit);
    const Result& result = results[i];
    std::lock_guard lock(output);
    if (options.table && result.outcome != Outcome::kFailed) return;
    std::printf("%-4s %s%s%s\n", kOutcomeNames[static_cast<int>(result.outcome)], full_name(chosen[i]).c_str(),
                result.why.empty() ? "" : ": ", result.why.c_str());
    if (result.outcome == Outcome::kFailed) print_indented(result.output);
    std::fflush(stdout);
  });

  std::map<std::string, Counts> areas;
  Counts total;
  for (size_t i = 0; i < chosen.size(); ++i) {
    Counts& counts = areas[chosen[i].area];
    ++counts.by_outcome[static_cast<int>(results[i].outcome)];
    ++total.by_outcome[static_cast<int>(results[i].outcome)];
    counts.mutations.insert(chosen[i].mutation);
  }
  if (!options.record.empty()) {
    std::ofstream record(options.record);
    for (size_t i = 0; i < chosen.size(); ++i) {
      record << chosen[i].area << '\t' << chosen[i].name << '\t' << kOutcomeNames[static_cast<int>(results[i].outcome)]
             << '\t' << results[i].why << '\n';
    }
    if (!record.flush()) usage_error("cannot write " + options.record);
  }
  if (options.table) {
    print_table(areas);
  } else {
    for (const auto& [area, counts] : areas) {
      std::printf("%s: %u passed, %u failed, %u skipped\n", area.c_str(), counts.by_outcome[0], counts.by_outcome[1],
                  counts.by_outcome[2]);
    }
    std::printf("%u passed, %u failed, %u skipped\n", total.by_outcome[0], total.by_outcome[1], total.by_outcome[2]);
  }
  return total.by_outcome[1] == 0 ? 0 : 1;
}

constexpr int kAttempts = 8;

// A rule that fails without its mutation as well says nothing about it.
int run_mutations(const std::vector<Rule>& chosen, const Options& options) {
  Scratch scratch;
  std::atomic<unsigned> noticed{0};
  std::atomic<unsigned> survived{0};
  std::atomic<unsigned> skipped{0};
  std::mutex output;
  in_parallel(chosen.size(), options.jobs, [&](size_t i) {
    const Rule& rule = chosen[i];
    Result plain = run(rule, "", scratch, options.limit);
    Result mutated;
    // What a defect makes possible need not happen each time on a busy machine: work that should have been waited for
    // may be over all the same. A rule that notices it once is able to.
    for (int attempt = 0; attempt < kAttempts && plain.outcome == Outcome::kOk; ++attempt) {
      mutated = run(rule, rule.mutation, scratch, options.limit);
      if (mutated.outcome == Outcome::kFailed) break;
    }
    std::lock_guard lock(output);
    std::string name = full_name(rule) + " (" + rule.mutation + ")";
    if (plain.outcome == Outcome::kSkipped) {
      ++skipped;
      std::printf("skip     %s: %s\n", name.c_str(), plain.why.c_str());
    } else if (plain.outcome == Outcome::kFailed) {
      ++survived;
      std::printf("FAIL     %s: fails without the mutation too: %s\n", name.c_str(), plain.why.c_str());
    } else if (mutated.output.find("ROTA_SIM_MUTATIONS names") != std::string::npos) {
      ++survived;
      std::printf("SURVIVED %s: simgpu does not know the mutation\n", name.c_str());
    } else if (mutated.outcome != Outcome::kFailed) {
      ++survived;
      std::printf("SURVIVED %s: the rule %s under its mutation\n", name.c_str(),
                  mutated.outcome == Outcome::kOk ? "holds" : "is skipped");
    } else {
      ++noticed;
      std::printf("noticed  %s: %s\n", name.c_str(), mutated.why.c_str());
    }
    std::fflush(stdout);
  });
  std::printf("%u noticed, %u survived, %u skipped\n", noticed.load(), survived.load(), skipped.load());
  return survived == 0 ? 0 : 1;
}

std::vector<Rule> choose(const Options& options) {
  std::vector<Rule> chosen;
  std::set<std::string> seen_areas;
  std::set<std::string> seen_names;
  unsigned matching = 0;
  for (const Rule& rule : rules()) {
    bool by_area = options.areas.empty() || options.areas.contains(rule.area);
    bool by_name =
        options.names.empty() || options.names.contains(rule.name) || options.names.contains(full_name(rule));
    seen_areas.insert(rule.area);
    seen_names.insert({rule.name, full_name(rule)});
    if (by_area && by_name && matching++ % options.every == 0) chosen.push_back(rule);
  }
  for (const std::string& area : options.areas) {
    if (!seen_areas.contains(area)) usage_error("there is no area " + area);
  }
  for (const std::string& name : options.names) {
    if (!seen_names.contains(name)) usage_error("there is no rule " + name);
  }
  return chosen;
}

// Within its area a name decides what a result file or a command line means, so each stands for one rule.
void check_registrations() {
  std::set<std::string> names;
  for (const Rule& rule : rules()) {
    if (!names.insert(full_name(rule)).second) usage_error("two rules are called " + full_name(rule));
    if (*rule.mutation == '\0') usage_error(full_name(rule) + " names no mutation");
  }
  std::set<std::string> role_names;
  for (const Role& role : roles()) {
    if (!role_names.insert(role.name).second) usage_error("two roles are called " + std::string(role.name));
  }
  std::sort(rules().begin(), rules().end(), [](const Rule& a, const Rule& b) {
    return std::pair(std::string_view(a.area), std::string_view(a.name)) <
           std::pair(std::string_view(b.area), std::string_view(b.name));
  });
}

int run_one(const std::string& name) {
  for (const Rule& rule : rules()) {
    if (full_name(rule) == name || rule.name == name) run_rule(rule);
  }
  usage_error("there is no rule " + name);
}

int run_role(const std::string& name, const std::string& argument, const std::string& descriptor) {
  for (const Role& role : roles()) {
    if (role.name == name) run_child(role, argument, static_cast<int>(number("--child", descriptor)));
  }
  usage_error("there is no role " + name);
}

int conformance_main(std::vector<std::string> arguments) {
  check_registrations();
  if (arguments.size() == 2 && arguments[0] == "--run-one") return run_one(arguments[1]);
  if (arguments.size() == 4 && arguments[0] == "--child") return run_role(arguments[1], arguments[2], arguments[3]);

  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& option = arguments[i];
    auto value = [&]() -> const std::string& {
      if (i + 1 == arguments.size()) usage_error(option + " needs a value");
      return arguments[++i];
    };
    if (option == "--help") {
      std::fputs(kUsage, stdout);
      return 0;
    } else if (option == "--list") {
      options.list = true;
    } else if (option == "--mutations") {
      options.mutations = true;
    } else if (option == "--table") {
      options.table = true;
    } else if (option == "--skip-without-gpu") {
      options.skip_without_gpu = true;
    } else if (option == "--area") {
      options.areas.insert(value());
    } else if (option == "--rule") {
      options.names.insert(value());
    } else if (option == "--every") {
      options.every = number(option, value());
    } else if (option == "--record") {
      options.record = value();
    } else if (option == "--jobs") {
      options.jobs = number(option, value());
    } else if (option == "--limit") {
      options.limit = std::chrono::seconds(number(option, value()));
    } else if (option == "--kernels") {
      setenv(kKernelsVariable, std::filesystem::absolute(value()).c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
    } else {
      usage_error("unknown option " + option);
    }
  }
  if (options.skip_without_gpu && !std::filesystem::exists("/dev/nvidiactl")) {
    std::printf("skipped: no NVIDIA GPU on this machine\n");
    return kSkipped;
  }
  std::vector<Rule> chosen = choose(options);
  if (options.list) {
    for (const Rule& rule : chosen) {
      std::printf("%s\t%s\t%s\t%s\n", rule.area, rule.name, rule.mutation, rule.statement);
    }
    return 0;
  }
  return options.mutations ? run_mutations(chosen, options) : run_rules(chosen, options);
}

}  // namespace
}  // namespace conformance

int main(int argc, char** argv) {
  return conformance::conformance_main({argv + 1, argv + argc});
}
