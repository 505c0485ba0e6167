// See report_folder.h.
#include "tools/rota/report/report_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tools/rota/report/files.h"
#include "tools/rota/report/session.h"

namespace rota::report {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kDigits = "0123456789";

// Takes "PID[-START[-N]]" off the front of a file's name.
bool skip_process(std::string_view& name) {
  const std::size_t end = std::min(name.find_first_not_of("0123456789-"), name.size());
  const bool is = end != 0 && kDigits.find(name.front()) != std::string_view::npos;
  name.remove_prefix(end);
  return is;
}

struct Inside {
  const char* folder;
  std::string_view ending;  // of its files, which are named after processes
};
constexpr Inside kInside[] = {{kProcessFolder, ".account"}, {kTestFolder, ".jsonl"}, {kHangFolder, ".txt"},
                              {kEndFolder, ".json"},        {"stacks", ".txt"},      {kLostFolder, " "}};

bool is_own_file(const Inside& inside, const fs::directory_entry& entry, std::error_code& error) {
  const std::string file = entry.path().filename().string();
  std::string_view name = file;
  if (!fs::is_regular_file(entry.symlink_status(error)) || !skip_process(name)) return false;
  return inside.folder == std::string_view(kLostFolder) ? name.starts_with(inside.ending) : name == inside.ending;
}

struct Content {
  std::vector<fs::path> own;  // to be removed in this order: files before their folders
  std::string stranger;       // what is not rota's
};

// What is in one of rota's folders.
void look_into(const Inside& inside, const fs::path& folder, Content& content, std::error_code& error) {
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (is_own_file(inside, *entry, error)) {
      content.own.push_back(entry->path());
    } else if (content.stranger.empty()) {
      content.stranger = fmt::format("{}/{}", inside.folder, entry->path().filename().string());
    }
  }
  content.own.push_back(folder);
}

bool is_own_description(const fs::path& file) {
  constexpr std::uintmax_t kMost = 1 << 20;
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(file, error)) || fs::file_size(file, error) > kMost || error)
    return false;
  std::ifstream stream(file, std::ios::binary);
  const auto object = nlohmann::json::parse(stream, [](int depth, auto, const auto&) { return depth < 16; }, false);
  return object.is_object() && object.contains("rota") && object.contains("begin_ns");
}

bool is_report_file(std::string_view name) {
  return name == kSessionFile || name == kTestFile ||
         std::ranges::any_of(kFolderFiles, [&](const FolderFile& file) { return name == file.name; });
}

Result<Content> content_of(const fs::path& folder, const std::vector<NamedFile>& named) {
  Content content;
  std::error_code error;
  const bool described = is_own_description(folder / kSessionFile);
  const auto is_named = [&](const fs::path& path) {
    std::error_code none;
    return std::ranges::any_of(named, [&](const NamedFile& file) {
      return !file.path.empty() && fs::exists(file.path, none) && fs::equivalent(file.path, path, none);
    });
  };
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const fs::file_status status = entry->symlink_status(error);
    const auto* const inside = std::ranges::find(kInside, name, [](const Inside& each) { return each.folder; });
    if (described && fs::is_directory(status) && inside != std::end(kInside)) {
      look_into(*inside, entry->path(), content, error);
    } else if (fs::is_directory(status) && inside != std::end(kInside) && fs::is_empty(entry->path(), error)) {
      content.own.push_back(entry->path());  // of a report that was not begun
    } else if (described && fs::is_regular_file(status) && is_report_file(name)) {
      content.own.push_back(entry->path());
    } else if (!is_named(entry->path())) {
      content.stranger = name;
    }
    if (error || !content.stranger.empty()) break;
  }
  // Without a descriptor for this there is none for a report either: the command runs without a report.
  if (error == std::errc::too_many_files_open) return Content{};
  if (error) return Error{fmt::format("cannot be read: {}", error.message())};
  // The description shows that a folder is rota's, so it is removed last: a folder that was removed in part can be
  // removed again.
  std::ranges::stable_partition(content.own, [](const fs::path& path) { return path.filename() != kSessionFile; });
  return content;
}

Result<bool> remove_own(const Content& content) {
  // Nothing is removed unless everything can be.
  for (const fs::path& path : content.own) {
    std::error_code error;
    if (fs::is_directory(path, error) && access(path.c_str(), R_OK | W_OK | X_OK) != 0) {
      return Error{fmt::format("the earlier report there cannot be removed: {}: {}", path.filename().string(),
                               std::strerror(errno))};
    }
  }
  for (const fs::path& path : content.own) {
    std::error_code error;
    // If somebody has put something into a folder meanwhile, it stays.
    fs::remove(path, error);
    if (error && error != std::errc::directory_not_empty) {
      return Error{
          fmt::format("the earlier report there cannot be removed: {}: {}", path.filename().string(), error.message())};
    }
  }
  return true;
}

}  // namespace

Result<bool> make_session_folders(const std::string& folder, bool temporary) {
  for (const char* inside : {kProcessFolder, kTestFolder, kLostFolder}) {
    std::error_code error;
    fs::create_directories(fs::path(folder) / inside, error);
    if (error) return Error{fmt::format("cannot make the folder {}/{}: {}", folder, inside, error.message())};
    // A process of another user can at least record its name; everything else is for this user.
    if (inside == std::string_view(kLostFolder)) {
      fs::permissions(fs::path(folder) / inside, fs::perms::all | fs::perms::sticky_bit, error);
    } else if (temporary) {
      fs::permissions(fs::path(folder) / inside, fs::perms::owner_all, error);
    }
  }
  std::error_code ignored;
  constexpr auto kPass = fs::perms::group_exec | fs::perms::others_exec;
  if (temporary) fs::permissions(folder, fs::perms::owner_all | kPass, ignored);
  return true;
}

Result<ReportFolder> prepare_folder(const std::string& path, const std::vector<NamedFile>& named) {
  std::error_code error;
  std::string folder = resolved(path).string();
  if (folder.ends_with('/') && folder.size() > 1) folder.pop_back();
  const auto refuse = [&](const std::string& why) { return Error{fmt::format("{}: {}", path, why)}; };
  fs::create_directories(folder, error);
  if (error) return refuse(fmt::format("cannot make the folder {}: {}; name another one", folder, error.message()));
  // Where a file system has no locks, nobody is refused.
  ReportFolder prepared{.path = folder, .lock = Descriptor(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC))};
  if (prepared.lock && flock(prepared.lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return refuse("another job that is still running writes its report there: name another folder");
  }
  const auto content = content_of(folder, named);
  if (!content) return refuse(content.error().text + "; name another folder");
  if (!content->stranger.empty()) {
    return refuse(fmt::format(
        "holds {}, which is not of a report of rota's: nothing there was changed; name a new folder, or empty this one",
        content->stranger));
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    return refuse(fmt::format("cannot be written: {}; name another folder", std::strerror(errno)));
  }
  if (const auto removed = remove_own(*content); !removed) {
    return refuse(removed.error().text + "; name another folder");
  }
  if (const auto made = make_session_folders(folder); !made) return refuse(made.error().text + "; name another one");
  return prepared;
}

}  // namespace rota::report
