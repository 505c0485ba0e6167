// rota: the command line. Every subcommand ends by throwing its exit code as CLI::RuntimeError.
#include <CLI/CLI.hpp>
#include <string>

#include "tools/rota/run.h"
#include "tools/rota/status.h"
#ifdef ROTA_HAVE_TRACE
#include "tools/rota/trace.h"
#endif

int main(int argc, char** argv) {
  CLI::App app{"rota: many CUDA programs take turns on one GPU, each as if it had the whole GPU"};
  app.set_version_flag("--version", std::string("rota ") + ROTA_VERSION);
  app.require_subcommand(1);
  rota::tool::register_run(app);
  rota::tool::register_status(app);
#ifdef ROTA_HAVE_TRACE
  rota::tool::register_trace(app);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& end) {
    return end.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  return 0;
}
