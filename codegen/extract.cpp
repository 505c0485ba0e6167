// An API is read in two parses. The INTERNAL one (__CUDA_API_VERSION_INTERNAL) declares every exported symbol and
// undoes the macros that rename them, but hides deprecations; the plain one has documentation and deprecations under
// the names that a program sees. Documentation belongs to a base name and applies to all its versions; a deprecation
// belongs to one version and applies to its stream forms.
#include "codegen/extract.h"

#include <clang-c/Index.h>
#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "codegen/clang_parse.h"
#include "codegen/documentation.h"
#include "codegen/hidden_declarations.h"
#include "codegen/type_collector.h"

namespace rota::codegen {
namespace {

namespace fs = std::filesystem;

struct SymbolName {
  std::string stem;  // without the stream form: cuMemcpyHtoD_v2
  std::string base;  // without the version as well: cuMemcpyHtoD
  int suffix = 1;    // 2 for _v2; 1 if there is none
  StreamForm form = StreamForm::kDefault;
};

SymbolName split_symbol(std::string_view name) {
  SymbolName split;
  std::string_view stem = name;
  for (const StreamForm form : {StreamForm::kPerThreadStream, StreamForm::kPerThreadDefault}) {
    if (!stem.ends_with(stream_form_suffix(form))) continue;
    stem.remove_suffix(stream_form_suffix(form).size());
    split.form = form;
  }
  split.stem = stem;
  std::size_t digits = stem.size();
  while (digits > 0 && stem[digits - 1] >= '0' && stem[digits - 1] <= '9') --digits;
  if (digits < stem.size() && stem.substr(0, digits).ends_with("_v")) {
    split.suffix = std::stoi(std::string(stem.substr(digits)));
    stem = stem.substr(0, digits - 2);
  }
  split.base = stem;
  return split;
}

// PFN_cuMemcpyHtoD_v7000_ptds: the type of one version of one base name.
struct VersionTypedef {
  int version = 0;
  CXCursor cursor;
};

using Group = std::pair<std::string, StreamForm>;

class ApiReader {
 public:
  ApiReader(const HeaderSet& headers, const ExtractOptions& options)
      : headers_(headers), types_(options.include_directory) {}

  Result<Api> read(const ParsedUnit& internal, const ParsedUnit& plain);
  // Every function seen by either parse.
  const std::set<std::string>& seen() const { return seen_; }

 private:
  bool is_api_function(CXCursor cursor, const std::string& name) const;
  void scan(CXCursor parent);
  void read_plain(CXCursor parent);
  void fail(std::string text) {
    if (!failure_) failure_ = Error{std::move(text)};
  }
  Function convert(const std::string& name, CXCursor cursor);
  void match_versions();

  const HeaderSet& headers_;
  TypeCollector types_;
  std::map<std::string, CXCursor> functions_;
  std::map<Group, std::vector<VersionTypedef>> typedefs_;
  std::map<std::string, int> versions_;
  std::map<std::string, ParsedComment> comments_;  // by base name
  std::set<std::string> deprecated_;               // stems
  std::set<std::string> seen_;
  std::optional<Error> failure_;
};

bool ApiReader::is_api_function(CXCursor cursor, const std::string& name) const {
  const bool named = name.starts_with(headers_.function_prefix) || name.starts_with("__" + headers_.function_prefix);
  // nvlink defines these in the program itself; no library exports them.
  if (name.starts_with("__cudaRegisterLinkedBinary")) return false;
  return named && types_.is_api_header(cursor) && clang_getCursorLinkage(cursor) == CXLinkage_External &&
         clang_Cursor_isFunctionInlined(cursor) == 0 && clang_Cursor_getStorageClass(cursor) != CX_SC_Static;
}

void ApiReader::scan(CXCursor parent) {
  for_each_child(parent, [this](CXCursor cursor) {
    const CXCursorKind kind = clang_getCursorKind(cursor);
    if (kind == CXCursor_LinkageSpec) {
      scan(cursor);
    } else if (kind == CXCursor_FunctionDecl) {
      const std::string name = to_string(clang_getCursorSpelling(cursor));
      seen_.insert(name);
      if (is_api_function(cursor, name)) functions_.emplace(name, cursor);
    } else if (kind == CXCursor_TypedefDecl && to_string(clang_getCursorSpelling(cursor)).starts_with("PFN_cu")) {
      const std::string name = to_string(clang_getCursorSpelling(cursor)).substr(4);
      const SymbolName split = split_symbol(name);
      // Without a version it is another name for the newest one (a macro in all releases seen so far).
      if (split.stem != split.base) typedefs_[{split.base, split.form}].push_back({split.suffix, cursor});
    } else {
      types_.note(cursor);
    }
  });
}

void ApiReader::read_plain(CXCursor parent) {
  for_each_child(parent, [this](CXCursor cursor) {
    const CXCursorKind kind = clang_getCursorKind(cursor);
    if (kind == CXCursor_LinkageSpec) return read_plain(cursor);
    if (kind != CXCursor_FunctionDecl) return;
    const std::string name = to_string(clang_getCursorSpelling(cursor));
    seen_.insert(name);
    if (!is_api_function(cursor, name)) return;
    if (!functions_.contains(name)) {
      fail(
          fmt::format("{}: {} is declared for programs, but not where all versions of a function are: a macro hides it",
                      location_of(cursor), name));
    }
    const SymbolName split = split_symbol(name);
    if (clang_getCursorAvailability(cursor) == CXAvailability_Deprecated) deprecated_.insert(split.stem);
    const std::string comment = to_string(clang_Cursor_getRawCommentText(cursor));
    if (!comment.empty()) comments_[split.base] = parse_comment(comment);
  });
}

Function ApiReader::convert(const std::string& name, CXCursor cursor) {
  const SymbolName split = split_symbol(name);
  Function function;
  function.name = name;
  function.base = split.base;
  function.form = split.form;
  function.header = types_.header_of(cursor);
  function.result = types_.convert(clang_getCursorResultType(cursor), cursor);
  function.parameters = types_.convert_parameters(cursor);
  function.deprecated = deprecated_.contains(split.stem);
  if (const auto comment = comments_.find(split.base); comment != comments_.end()) {
    function.documentation = comment->second.documentation;
    for (Parameter& parameter : function.parameters) {
      const auto tag = comment->second.directions.find(parameter.name);
      if (tag != comment->second.directions.end()) parameter.direction = tag->second;
    }
  }
  if (const auto version = versions_.find(name); version != versions_.end()) function.version = version->second;
  return function;
}

// A group's typedefs, sorted by version, match its symbols, sorted by _vN. A symbol's N alone says nothing, because
// many groups begin at _v2.
void ApiReader::match_versions() {
  std::map<Group, std::vector<std::pair<int, std::string>>> symbols;
  for (const auto& [name, cursor] : functions_) {
    const SymbolName split = split_symbol(name);
    symbols[{split.base, split.form}].emplace_back(split.suffix, name);
  }
  for (const auto& [group, versions] : typedefs_) {
    // The typedefs for OpenGL interop on Windows are declared on every platform.
    if (symbols.contains(group) || group.first.find("WGL") != std::string::npos) continue;
    fail(fmt::format("{}: {} names a version of {}{}, which is declared nowhere: a macro hides it",
                     location_of(versions.front().cursor), to_string(clang_getCursorSpelling(versions.front().cursor)),
                     group.first, stream_form_suffix(group.second)));
  }
  for (auto& [group, members] : symbols) {
    std::vector<VersionTypedef>& versions = typedefs_[group];
    std::ranges::sort(members);
    std::ranges::sort(versions, {}, &VersionTypedef::version);
    if (members.size() != versions.size()) {
      fail(fmt::format("{}{}: {} exported versions but {} PFN_ typedefs, so it is unknown which CUDA version has which",
                       group.first, stream_form_suffix(group.second), members.size(), versions.size()));
      continue;
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      const std::string& name = members[i].second;
      versions_[name] = versions[i].version;
      const CXType pointer = clang_getCanonicalType(clang_getTypedefDeclUnderlyingType(versions[i].cursor));
      const CXType declared = clang_getCanonicalType(clang_getCursorType(functions_.at(name)));
      if (clang_equalTypes(clang_getPointeeType(pointer), declared) == 0) {
        fail(fmt::format("{}: {} does not have the type of {}", location_of(versions[i].cursor),
                         to_string(clang_getCursorSpelling(versions[i].cursor)), name));
      }
    }
  }
}

Result<Api> ApiReader::read(const ParsedUnit& internal, const ParsedUnit& plain) {
  scan(internal.root());
  read_plain(plain.root());
  if (functions_.empty()) return Error{"the headers declare no function of the API"};
  if (headers_.typedefs_give_versions) match_versions();
  Api api;
  types_.want_names(headers_.function_prefix == "cu" ? std::vector<std::string_view>{"CU", "cu"}
                                                     : std::vector<std::string_view>{headers_.function_prefix});
  for (const auto& [name, cursor] : functions_) api.functions.push_back(convert(name, cursor));
  if (const auto problem = types_.finish(api)) return *problem;
  if (failure_) return *failure_;
  api.index();
  return api;
}

bool has_stddef(const fs::path& resource_directory) {
  return fs::exists(resource_directory / "include" / "stddef.h");
}

// If the folder has no such header, the compiler may find it in another CUDA installation on its own search path. The
// model would then be a mixture, or miss what only that header declares.
std::optional<Error> mixture(const ParsedUnit& unit, const std::string& include_directory) {
  for (const std::string& file : unit.included_files()) {
    if (file.starts_with(include_directory + "/")) continue;
    for (fs::path folder = fs::path(file).parent_path(); folder.has_relative_path(); folder = folder.parent_path()) {
      if (!fs::exists(folder / "cuda_runtime_api.h")) continue;  // Linux has a cuda.h of its own
      return Error{
          fmt::format("{}: not in {}, where it should be, but in another CUDA installation", file, include_directory)};
    }
  }
  return std::nullopt;
}

Result<int> stated_version(const ExtractOptions& options, const std::vector<std::string>& arguments) {
  // An enumerator is the simplest way to have a macro's value evaluated.
  const auto unit =
      ParsedUnit::parse("#include <cuda.h>\nenum RotaVersion { kRotaVersion = CUDA_VERSION };\n", arguments);
  if (!unit) return unit.error();
  int version = 0;
  for_each_child(unit->root(), [&](CXCursor cursor) {
    if (to_string(clang_getCursorSpelling(cursor)) != "RotaVersion") return;
    for_each_child(cursor, [&](CXCursor value) { version = static_cast<int>(clang_getEnumConstantDeclValue(value)); });
  });
  if (version < 1000) return Error{fmt::format("{}/cuda.h states no CUDA_VERSION", options.include_directory)};
  return version;
}

Result<std::vector<std::string>> compiler_arguments(const ExtractOptions& options) {
  std::string resources = options.resource_directory;
  if (resources.empty()) {
    auto found = find_resource_directory();
    if (!found) return found.error();
    resources = *found;
  } else if (!has_stddef(resources)) {
    return Error{
        fmt::format("{}/include/stddef.h is missing: --resource-dir must name clang's resource directory", resources)};
  }
  // EGL's headers would pull in X11's, which define macros such as None and Success.
  std::vector<std::string> arguments{
      "-x", "c++", "-std=c++17", "-w", "-DEGL_NO_X11", "-resource-dir", resources, "-I", options.include_directory};
  arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
  return arguments;
}

// The names in #include <…> lines.
std::vector<std::string> included_headers(const std::string& source) {
  constexpr std::string_view kInclude = "#include <";
  std::vector<std::string> names;
  for (std::size_t at = source.find(kInclude); at != std::string::npos; at = source.find(kInclude, at)) {
    at += kInclude.size();
    names.push_back(source.substr(at, source.find('>', at) - at));
  }
  return names;
}

}  // namespace

HeaderSet driver_headers() {
  return {.source =
              "#include <cuda.h>\n"
              "#include <cudaProfiler.h>\n"
              "#include <cudaGL.h>\n"
              "#include <cudaEGL.h>\n"
              "#include <vdpau/vdpau.h>\n"
              "#include <cudaVDPAU.h>\n"
              "#include <cudaTypedefs.h>\n"
              "#include <cudaProfilerTypedefs.h>\n"
              "#include <cudaGLTypedefs.h>\n"
              "#include <cudaEGLTypedefs.h>\n"
              "#include <cudaVDPAUTypedefs.h>\n",
          .function_prefix = "cu",
          .typedefs_give_versions = true};
}

// The __cuda* functions, which nvcc's output calls, are declared only for that output (the first macro) and for CUDA
// source (the second macro, from where it is defined).
HeaderSet runtime_headers() {
  return {.source =
              "#include <cuda_runtime_api.h>\n"
              "#include <cuda_profiler_api.h>\n"
              "#include <cuda_gl_interop.h>\n"
              "#include <cuda_egl_interop.h>\n"
              "#include <cuda_vdpau_interop.h>\n"
              "#define __CUDA_INTERNAL_COMPILATION__\n"
              "#include <crt/host_runtime.h>\n"
              "#define __CUDACC__ 1\n"
              "#include <crt/device_functions.h>\n",
          .function_prefix = "cuda",
          .typedefs_give_versions = false};
}

Result<std::string> find_resource_directory() {
  std::vector<fs::path> candidates;
  const std::string version = std::to_string(ROTA_CLANG_MAJOR);
  Dl_info info{};
  std::error_code ignored;
  if (dladdr(reinterpret_cast<void*>(&clang_createIndex), &info) != 0 && info.dli_fname) {
    const fs::path library = fs::canonical(info.dli_fname, ignored);
    candidates.push_back(library.parent_path() / "clang" / version);
    candidates.push_back(library.parent_path().parent_path() / "lib" / "clang" / version);
    candidates.push_back(library.parent_path().parent_path() / ("llvm-" + version) / "lib" / "clang" / version);
    candidates.push_back(library.parent_path().parent_path().parent_path() / ("llvm-" + version) / "lib" / "clang" /
                         version);
  }
  candidates.emplace_back(ROTA_CLANG_RESOURCE_DIR);
  std::string tried;
  for (const fs::path& candidate : candidates) {
    if (candidate.empty()) continue;
    if (has_stddef(candidate)) return candidate.string();
    tried += "\n  " + candidate.string();
  }
  return Error{
      fmt::format("libclang's own headers (stddef.h) are not in any of:{}\ninstall libclang-common-{}-dev or give "
                  "--resource-dir",
                  tried, version)};
}

Result<Api> extract_api(const HeaderSet& headers, const ExtractOptions& options) {
  auto arguments = compiler_arguments(options);
  if (!arguments) return arguments.error();
  // crt/host_runtime.h warns if it is included without this.
  arguments->push_back("-D__CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__");
  auto plain = ParsedUnit::parse(headers.source, *arguments);
  if (!plain) return plain.error();
  if (auto problem = mixture(*plain, options.include_directory)) return *problem;
  arguments->insert(arguments->end(), {"-D__CUDA_API_VERSION_INTERNAL", "-D__CUDA_API_VERSION_INTERNAL_ODR"});
  auto internal = ParsedUnit::parse(headers.source, *arguments);
  if (!internal) return internal.error();
  ApiReader reader(headers, options);
  auto api = reader.read(*internal, *plain);
  if (!api) return api;
  if (auto hidden =
          find_hidden_declarations(options.include_directory, included_headers(headers.source), reader.seen()))
    return *hidden;
  return api;
}

Result<Model> extract_model(const ExtractOptions& given, const std::string& release) {
  ExtractOptions options = given;
  // The prefix of a declaration's file path tells CUDA's own declarations from others.
  while (options.include_directory.size() > 1 && options.include_directory.ends_with('/'))
    options.include_directory.pop_back();
  // Checked here because the compiler might find another cuda.h on its own search path.
  if (!fs::exists(fs::path(options.include_directory) / "cuda.h")) {
    return Error{fmt::format("{}: holds no cuda.h", options.include_directory)};
  }
  const auto arguments = compiler_arguments(options);
  if (!arguments) return arguments.error();
  const auto version = stated_version(options, *arguments);
  if (!version) return version.error();
  Model model;
  model.release = fmt::format("{}.{}", *version / 1000, *version % 1000 / 10);
  if (!release.empty() && release != model.release) {
    return Error{fmt::format("{}/cuda.h is of release {}, not {}", options.include_directory, model.release, release)};
  }
  auto driver = extract_api(driver_headers(), options);
  if (!driver) return driver.error();
  auto runtime = extract_api(runtime_headers(), options);
  if (!runtime) return runtime.error();
  model.driver = std::move(*driver);
  model.runtime = std::move(*runtime);
  return model;
}

}  // namespace rota::codegen
