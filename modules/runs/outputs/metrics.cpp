module;
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>
#include <tessera/input_file.hpp>
#include <tessera/json.hpp>
#include <tessera/limits.hpp>
#include <tessera/signals.hpp>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.stores;

namespace tessera::runs {
namespace {

constexpr const char* owner_key = "checkpoints";
constexpr const char* ledger_key = "ledger";
const std::string validation_prefix = "validation_";
constexpr std::size_t most_pending = std::size_t{64} << 20;
constexpr int seconds_for_reader = 5;

std::string reason(int error = errno) { return reason_of(error); }

[[noreturn]] void cannot_write(const std::filesystem::path& path, const std::string& why) {
  fail({.thing = "metrics", .wrong = fmt::format("{} cannot be written: {}", path.string(), why)});
}

std::string text_of(int file) {
  std::string text;
  std::array<char, 1 << 16> piece{};
  for (off_t at = 0;;) {
    const ssize_t count = ::pread(file, piece.data(), piece.size(), at);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return text;
    }
    text.append(piece.data(), static_cast<std::size_t>(count));
    at += count;
  }
}

/// Calls `use` with each complete line and its JSON, which need not be an object.
template <class F>
void for_lines(const std::string& text, const F& use) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) {
      return;  // the process was killed while it wrote this line
    }
    const std::string line = text.substr(at, end + 1 - at);
    use(line, parse_json(line, false));
    at = end + 1;
  }
}

/// The step of a line; none: it is not of a metrics file.
std::optional<std::int64_t> step_of(const nlohmann::json& line) {
  return line.is_object() && line.contains("step") && line["step"].is_number_integer()
             ? std::optional(line["step"].get<std::int64_t>())
             : std::nullopt;
}

/// Seconds by use; uses without any are left out.
nlohmann::ordered_json json_of(const TimeBook& book) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < time_use_count; ++i) {
    if (book.seconds[i] > 0) {
      json[std::string(word_of(static_cast<TimeUse>(i)))] = book.seconds[i];
    }
  }
  return json;
}

/// The opposite; what is no number counts as nothing.
TimeBook book_of(const nlohmann::json& json) {
  TimeBook book;
  for (std::size_t i = 0; i < time_use_count && json.is_object(); ++i) {
    const auto found = json.find(word_of(static_cast<TimeUse>(i)));
    if (found != json.end() && found->is_number()) {
      book.seconds[i] = found->get<double>();
    }
  }
  return book;
}

/// The lines of steps up to `last`, as they are.
std::string kept_lines(const std::string& text, std::int64_t last) {
  std::string kept;
  for_lines(text, [&](const std::string& line, const nlohmann::json& json) {
    const std::optional<std::int64_t> step = step_of(json);
    kept += step && *step <= last ? line : "";
  });
  return kept;
}

/// This process's stdout or stderr where that goes to the file of this path; -1: neither does. What
/// is written through another descriptor would be at another place of the file.
int stream_to_file(const std::filesystem::path& path) {
  struct stat named{};
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat open{};
    if (::stat(path.c_str(), &named) == 0 && S_ISREG(named.st_mode) &&
        ::fstat(stream, &open) == 0 && open.st_dev == named.st_dev && open.st_ino == named.st_ino) {
      return stream;
    }
  }
  return -1;
}

}  // namespace

std::string to_json(const StepMetrics& m) {
  nlohmann::ordered_json json = {{"step", m.step},
                                 {"loss", m.loss},
                                 {"grad_norm", m.grad_norm},
                                 {"lr", m.lr},
                                 {"tokens_per_second", m.tokens_per_second},
                                 {"seconds", m.seconds},
                                 {"memory_bytes", m.memory_bytes}};
  if (m.skipped) {
    json["skipped"] = true;
  }
  if (m.spike) {
    json["spike"] = true;
  }
  if (m.excluded_rows > 0) {
    json["excluded_rows"] = m.excluded_rows;
  }
  for (const auto& [category, bytes] : m.memory_peaks) {
    json["memory_peaks"][category] = bytes;
  }
  if (m.save_seconds > 0) {
    json["save_seconds"] = m.save_seconds;
  }
  if (m.ledger.total() > 0) {
    json[ledger_key] = json_of(m.ledger);
  }
  for (const TimeBook& rank : m.ledger_ranks) {
    json["ledger_ranks"].push_back(json_of(rank));
  }
  if (m.waited_for) {
    json["waited_for"] = {{"rank", m.waited_for->first}, {"seconds", m.waited_for->second}};
  }
  for (const auto& [name, value] : m.measures) {
    json[name] = value;
  }
  for (const auto& [layer, tokens] : m.expert_tokens) {
    json["expert_tokens"][layer] = tokens;
  }
  if (m.validation_loss) {
    json["validation_loss"] = *m.validation_loss;
  }
  for (const auto& [name, value] : m.validation_measures) {
    json[validation_prefix + name] = value;
  }
  if (m.checkpoints) {
    json[owner_key] = *m.checkpoints;
  }
  return json_text(json);
}

Measures scalars_of(const StepMetrics& m) {
  Measures all = {{"loss", m.loss},
                  {"grad_norm", m.grad_norm},
                  {"lr", m.lr},
                  {"tokens_per_second", m.tokens_per_second},
                  {"memory_bytes", static_cast<double>(m.memory_bytes)}};
  all.insert(all.end(), m.measures.begin(), m.measures.end());
  if (m.validation_loss) {
    all.emplace_back("validation_loss", *m.validation_loss);
  }
  for (const auto& [name, value] : m.validation_measures) {
    all.emplace_back(validation_prefix + name, value);
  }
  return all;
}

std::vector<StepMetrics> read_metrics(const std::filesystem::path& file) {
  const std::string text = input_text(file.string(), std::size_t{1} << 30);
  std::vector<StepMetrics> all;
  std::size_t lines = 0;
  for_lines(text, [&](const std::string&, const nlohmann::json& json) {
    ++lines;
    const std::optional<std::int64_t> step = step_of(json);
    if (!step) {
      fail_input({.thing = fmt::format("{}:{}", file.string(), lines),
                  .wrong = "it is not a line of a metrics file",
                  .expected = "a JSON object with step"});
    }
    const auto number = [&](const char* key) {
      const auto found = json.find(key);
      return found != json.end() && found->is_number() ? found->get<double>()
                                                       : std::numeric_limits<double>::quiet_NaN();
    };
    StepMetrics one;
    one.step = *step;
    one.loss = number("loss");
    one.grad_norm = number("grad_norm");
    one.lr = number("lr");
    one.tokens_per_second = number("tokens_per_second");
    one.seconds = number("seconds");
    one.skipped = json.contains("skipped") && json["skipped"] == true;
    one.spike = json.contains("spike") && json["spike"] == true;
    if (json.contains("excluded_rows") && json["excluded_rows"].is_number_integer()) {
      one.excluded_rows = json["excluded_rows"];
    }
    one.save_seconds = json.contains("save_seconds") ? number("save_seconds") : 0;
    if (json.contains("memory_bytes") && json["memory_bytes"].is_number_unsigned()) {
      one.memory_bytes = json["memory_bytes"];
    }
    if (json.contains(ledger_key)) {
      one.ledger = book_of(json[ledger_key]);
    }
    if (json.contains("validation_loss")) {
      one.validation_loss = number("validation_loss");
    }
    if (json.contains(owner_key) && json[owner_key].is_string()) {
      one.checkpoints = json[owner_key].get<std::string>();
    }
    all.push_back(std::move(one));
  });
  return all;
}

std::string metrics_owner(const std::filesystem::path& file, const std::string& checkpoints) {
  namespace fs = std::filesystem;
  if (checkpoints.empty()) {
    return "";
  }
  if (stores::is_address(checkpoints)) {
    return checkpoints;
  }
  const fs::path beside =
      fs::absolute(output_place(file.string())).lexically_normal().parent_path();
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(checkpoints, error);
  return folder.lexically_relative(fs::weakly_canonical(beside, error)).string();
}

std::int64_t check_metrics(const std::string& where, const std::filesystem::path& file,
                           const std::string& owner) {
  if (is_stream(file.string())) {
    return 0;
  }
  const int opened = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (opened < 0) {
    return 0;  // it is not there; whether it can be written shows when it is opened
  }
  const std::string text = text_of(opened);
  ::close(opened);
  std::int64_t lines = 0;
  std::optional<std::int64_t> last;
  std::optional<std::string> other;
  for_lines(text, [&](const std::string&, const nlohmann::json& json) {
    ++lines;
    const std::optional<std::int64_t> step = step_of(json);
    last = step ? step : last;
    if (step && json.contains(owner_key) && json[owner_key] != owner) {
      other = json[owner_key].is_string() ? json[owner_key].get<std::string>() : "";
    }
  });
  if (other) {
    const auto named = [](const std::string& folder) {
      return folder.empty() ? std::string("no checkpoints") : "checkpoints in " + folder;
    };
    fail_input(
        {.where = where,
         .wrong = fmt::format("{} has {} of another run, with {}; this run has {}", file.string(),
                              count_text(lines, "step"), named(*other), named(owner)),
         .advice = "name another file, or remove it"});
  }
  if (!text.empty() && !last && lines > 0) {
    fail_input({.where = where,
                .wrong = fmt::format("{} is not a metrics file", file.string()),
                .expected = "no file, or one with a JSON object for each step",
                .advice = "name another file"});
  }
  return last.value_or(0);
}

class MetricsWriter::State {
 public:
  State(std::filesystem::path file, std::int64_t resumed_step)
      : path_(std::move(file)),
        place_(output_place(path_.string())),
        stream_(is_stream(path_.string())) {
    constexpr int to_append = O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    if (const int stream = stream_ ? stream_to_file(path_) : -1; stream >= 0) {
      file_ = ::fcntl(stream, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    } else if (stream_) {
      file_ = ::open(path_.c_str(), O_WRONLY | to_append);
    } else {
      const std::string parent =
          place_.has_parent_path() ? place_.parent_path().string() : std::string(".");
      make_folders(parent, "metrics");
      folder_.emplace(parent);
      file_ = ::openat(folder_->descriptor(), place_.filename().c_str(),
                       O_RDWR | O_CREAT | O_NOFOLLOW | to_append, 0666);
    }
    if (const int error = errno; file_ < 0) {
      const bool unread = error == ENXIO;
      fail_input(
          {.thing = "metrics",
           .wrong = fmt::format("{} cannot be written: {}", path_.string(),
                                unread ? "nobody reads it" : reason(error)),
           .advice = unread ? "start its reader first, or name a file" : "name another file"});
    }
    if (!stream_ && !keep(resumed_step)) {
      const std::string why = reason();
      ::close(file_);
      cannot_write(path_, why);
    }
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { ::close(file_); }

  void add(const std::string& line) {
    if (pending_.size() > most_pending) {
      cannot_write(path_, "too many lines wait to be written, and more are not kept");
    }
    pending_ += line;
    if (!stream_) {
      follow();
    }
    if (!flush() && !(stream_ && errno == EAGAIN)) {
      cannot_write(path_, reason());
    }
    check_folder();
  }

  void finish() {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::seconds(seconds_for_reader);
    while (!flush()) {
      pollfd one{file_, POLLOUT, 0};
      if (!stream_ || errno != EAGAIN || Clock::now() > end) {
        cannot_write(path_, errno == EAGAIN ? "its reader does not read" : reason());
      }
      ::poll(&one, 1, 100);
    }
    check_folder();
  }

 private:
  void check_folder() const {
    if (folder_ && folder_->is_lost()) {
      fail({.thing = "metrics",
            .wrong =
                fmt::format("the folder of {} was removed, moved or replaced during the run; its "
                            "lines are where that folder is now",
                            path_.string()),
            .advice = "put it back"});
    }
  }

  /// In place: usually nothing but the end of the file changes.
  bool keep(std::int64_t resumed_step) const {
    const std::string text = text_of(file_);
    const std::string kept = resumed_step > 0 ? kept_lines(text, resumed_step) : "";
    const auto differs = std::ranges::mismatch(text, kept);
    const auto same = static_cast<std::size_t>(differs.in2 - kept.begin());
    return ::ftruncate(file_, static_cast<off_t>(same)) == 0 &&
           write_all(std::string_view(kept).substr(same)) == kept.size() - same;
  }

  /// How much of it was written.
  std::size_t write_all(std::string_view text) const {
    const WithoutSigpipe scope;
    std::size_t done = 0;
    while (done < text.size()) {
      const ssize_t count = ::write(file_, text.data() + done, text.size() - done);
      if (count < 0 && errno != EINTR) {
        break;
      }
      done += count > 0 ? static_cast<std::size_t>(count) : 0;
    }
    return done;
  }

  bool flush() {
    if (stream_) {
      pending_.erase(0, write_all(pending_));
      return pending_.empty();
    }
    struct stat before{};
    if (::fstat(file_, &before) != 0) {
      return false;
    }
    if (write_all(pending_) == pending_.size()) {
      pending_.clear();
      return true;
    }
    const int error = errno;
    [[maybe_unused]] const int ignored = ::ftruncate(file_, before.st_size);  // whole lines only
    errno = error;
    return false;
  }

  /// Notices that the name is no longer the file's, wherever the folder is.
  void follow() {
    struct stat open{};
    struct stat named{};
    const std::string name = place_.filename().string();
    const bool is_there =
        ::fstatat(folder_->descriptor(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0;
    if (!is_there && errno != ENOENT) {
      return;
    }
    if (is_there && ::fstat(file_, &open) == 0 && open.st_dev == named.st_dev &&
        open.st_ino == named.st_ino) {
      return;
    }
    constexpr int flags = O_RDWR | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    const int next = ::openat(folder_->descriptor(), name.c_str(),
                              is_there ? flags : flags | O_CREAT | O_EXCL, 0666);
    if (next < 0 || (is_there && !S_ISREG(named.st_mode))) {
      const std::string why = next < 0 ? reason() : "something else has its name";
      if (next >= 0) {
        ::close(next);
      }
      cannot_write(path_, why);
    }
    if (!is_there) {
      pending_.insert(0, text_of(file_));
    }
    ::close(std::exchange(file_, next));
    log(LogLevel::warning,
        fmt::format("metrics: {} was {}", path_.string(),
                    is_there
                        ? "replaced during the run; further lines are added to what is there now"
                        : "removed or moved during the run, which writes it again, with all "
                          "its lines"));
  }

  std::filesystem::path path_;  // as it was named
  std::filesystem::path place_;
  bool stream_;
  std::optional<HeldFolder> folder_;  // of a file
  int file_ = -1;
  std::string pending_;  // lines that are not written
};

MetricsWriter::MetricsWriter(std::filesystem::path file, std::int64_t resumed_step)
    : state_(std::make_unique<State>(std::move(file), resumed_step)) {}

MetricsWriter::~MetricsWriter() = default;

void MetricsWriter::write(const StepMetrics& metrics) { state_->add(to_json(metrics) + "\n"); }

void MetricsWriter::finish() { state_->finish(); }

}  // namespace tessera::runs
