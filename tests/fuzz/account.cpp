// The account of a process, through everything that is made of it: once as it is, once with the fields that identify
// the build corrected, so that the corpus outlives changes of the driver's functions.
#include <cstddef>
#include <cstring>
#include <vector>

#include "runtime/preload/symbol_list.h"
#include "tests/fuzz/input.h"
#include "tools/rota/report/outputs.h"

namespace {

void read(const std::uint8_t* data, std::size_t size) {
  const rota::fuzz::InputFile input(data, size);
  auto process = rota::report::read_account(input.path());
  if (!process) {
    CHECK(rota::fuzz::is_a_line(process.error().text));
    return;
  }
  rota::report::Session session;
  session.tests.resize(1);
  session.tests[0].within = process->self.id();
  session.tests[0].outcome = "died";
  session.processes = {*process, *process};
  rota::report::Report report{
      .model = rota::report::make_model(std::move(session)), .suppressions = {}, .judgement = {}};
  rota::report::Demands demands;
  demands.rules = *rota::report::parse_rules("peak>+10%,errors,live,calls>1");
  demands.baseline.emplace();
  report.judgement = rota::report::judge(report.model, demands);
  for (const auto& finding : report.judgement.findings) CHECK(rota::fuzz::is_a_line(finding.text));
  using rota::report::Format;
  for (const Format format : {Format::kText, Format::kJunit, Format::kHtml}) CHECK(!render(report, format).empty());
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using rota::account::Header;
  read(data, size);
  if (size < offsetof(Header, self)) return 0;
  std::vector<std::uint8_t> mended(data, data + size);
  const auto put = [&](std::size_t offset, const auto& value) {
    std::memcpy(mended.data() + offset, &value, sizeof value);
  };
  put(offsetof(Header, magic), rota::account::kMagic);
  put(offsetof(Header, version), rota::account::kVersion);
  put(offsetof(Header, header_bytes), static_cast<std::uint32_t>(sizeof(Header)));
  put(offsetof(Header, thread_page_bytes), static_cast<std::uint32_t>(sizeof(rota::account::ThreadPage)));
  put(offsetof(Header, symbol_count), static_cast<std::uint32_t>(rota::kSymbolCount));
  put(offsetof(Header, symbol_list), rota::kSymbolListHash);
  read(mended.data(), mended.size());
  return 0;
}
