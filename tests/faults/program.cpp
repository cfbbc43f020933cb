#include "program.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace faults {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct ProcessState {
  char state = '?';
  pid_t parent = 0;
  pid_t group = 0;
  unsigned long long start = 0;
};

/// From /proc/PID/stat (proc(5)); the name in parentheses may hold anything.
bool read_state(pid_t process, ProcessState& found) {
  const std::string text = read_file("/proc/" + std::to_string(process) + "/stat");
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) {
    return false;
  }
  std::istringstream fields(text.substr(name_end + 1));
  fields >> found.state >> found.parent >> found.group;
  std::string skipped;
  for (int field = 6; field <= 21; ++field) {
    fields >> skipped;
  }
  return static_cast<bool>(fields >> found.start);
}

/// Every living process of a group, by the time of its start.
std::vector<std::pair<pid_t, ProcessState>> living_in_group(pid_t group) {
  std::vector<std::pair<pid_t, ProcessState>> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    pid_t process = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), process);
    ProcessState state;
    if (error == std::errc{} && end == name.data() + name.size() && read_state(process, state) &&
        state.group == group && state.state != 'Z' && state.state != 'X') {
      found.emplace_back(process, state);
    }
  }
  std::ranges::sort(found, [](const auto& a, const auto& b) {
    return std::pair(a.second.start, a.first) < std::pair(b.second.start, b.first);
  });
  return found;
}

[[noreturn]] void become_program(const fs::path& folder, const std::vector<std::string>& arguments,
                                 const StartOptions& options, const std::string& out,
                                 const std::string& error) {
  setpgid(0, 0);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU, SIGPIPE}) {
    signal(number, SIG_DFL);  // a shell's background jobs ignore SIGINT, and pass that on
  }
  for (const int number : options.ignored) {
    signal(number, SIG_IGN);
  }
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int number : options.blocked) {
    sigaddset(&blocked, number);
  }
  sigprocmask(SIG_SETMASK, &blocked, nullptr);
  for (const auto& [name, value] : options.environment) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  if (options.file_size_limit > 0) {
    const auto bytes = static_cast<rlim_t>(options.file_size_limit);
    const rlimit limit = {bytes, bytes};
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, SIG_IGN);  // as on a full disk: the write fails, the process lives
  }
  const int in = open("/dev/null", O_RDONLY);
  const int out_file = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int error_file = open(error.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (chdir(folder.c_str()) != 0 || dup2(in, 0) < 0 || dup2(out_file, 1) < 0 ||
      dup2(error_file, 2) < 0) {
    _exit(127);
  }
  if (options.out >= 0) {
    dup2(options.out, 1);
  } else if (options.out == -2) {
    close(1);
  }
  close_range(3, ~0U, 0);  // what a caller has left open would count against limits
  if (options.fixed_limits) {
    prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE);
  }
  for (const auto& [resource, value] : options.limits) {
    rlimit limit = {};
    getrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
    limit = {value, options.fixed_limits ? value : limit.rlim_max};
    setrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
  }
  std::vector<char*> words;
  for (const std::string& word : options.launcher) {
    words.push_back(const_cast<char*>(word.c_str()));
  }
  words.push_back(const_cast<char*>(TESSERA_PROGRAM));
  for (const std::string& argument : arguments) {
    words.push_back(const_cast<char*>(argument.c_str()));
  }
  words.push_back(nullptr);
  execvp(words[0], words.data());
  _exit(127);
}

fs::path fresh_path(const char* kind) {
  static std::atomic<int> made{0};
  return fs::temp_directory_path() /
         ("tessera_faults_" + std::to_string(getpid()) + "_" + kind + std::to_string(made++));
}

}  // namespace

const char* const small_run = R"([model]
dim = 32
layers = 2
heads = 4
kv_heads = 2
ffn_dim = 64
[data]
text = ["text.txt"]
seq_len = 32
validation = 0
[train]
steps = 3
batch = 4
[mesh]
axes = ["shard", "tensor"]
shape = [2, 2]
[[parallel]]
style = "ColwiseParallel"
axis = "tensor"
on = ["model.layers.*.self_attn.{q,k,v}_proj", "model.layers.*.mlp.{gate,up}_proj"]
[[parallel]]
style = "RowwiseParallel"
axis = "tensor"
on = ["model.layers.*.self_attn.o_proj", "model.layers.*.mlp.down_proj"]
[[parallel]]
style = "FSDP"
axis = "shard"
on = ["model.layers.*", "."]
[checkpoint]
every = 0
keep = 0
)";

std::string small_text() {
  std::string text;
  unsigned state = 1;
  while (text.size() < 65536) {
    state = state * 1664525U + 1013904223U;
    for (unsigned letters = 2 + (state >> 28) % 7, bits = state >> 4; letters > 0; --letters) {
      text += static_cast<char>('a' + bits % 26);
      bits = bits / 2 + 11;
    }
    text += state >> 27 == 0 ? '\n' : ' ';
  }
  return text;
}

RunFolder::RunFolder() {
  write("run.toml", small_run);
  write("text.txt", small_text());
}

std::map<std::string, std::uintmax_t> RunFolder::listing() const {
  std::map<std::string, std::uintmax_t> found;
  for (const auto& entry : fs::recursive_directory_iterator(path())) {
    found[entry.path().string()] = entry.is_regular_file() ? entry.file_size() : 0;
  }
  return found;
}

std::string read_file(const fs::path& path) { return tessera::testing::read_if_there(path); }

std::set<std::string> shared_memory() {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (name.find("tessera") != std::string::npos) {  // MPI's programs have names there too
      names.insert(name);
    }
  }
  return names;
}

Program::Program(const RunFolder& folder, const std::vector<std::string>& arguments,
                 const StartOptions& options)
    : out_(fresh_path("out").string()), error_(fresh_path("error").string()) {
  process_ = fork();
  if (process_ < 0) {
    throw std::runtime_error("fork failed");
  }
  if (process_ == 0) {
    become_program(folder.path(), arguments, options, out_, error_);
  }
  setpgid(process_, process_);  // here too: whoever of the two comes first
}

Program::~Program() {
  signal_group(SIGKILL);
  if (!reaped_) {
    waitpid(process_, nullptr, 0);
  }
  std::error_code ignored;
  fs::remove(out_, ignored);
  fs::remove(error_, ignored);
}

std::vector<pid_t> Program::ranks() const {
  std::vector<pid_t> found;
  for (const auto& [process, state] : living_in_group(process_)) {
    if (state.parent == process_) {
      found.push_back(process);
    }
  }
  return found;
}

std::vector<pid_t> Program::living() const {
  std::vector<pid_t> found;
  for (const auto& [process, state] : living_in_group(process_)) {
    found.push_back(process);
  }
  return found;
}

std::string Program::out() const { return read_file(out_); }
std::string Program::error() const { return read_file(error_); }
void Program::signal(int number) const { kill(process_, number); }
void Program::signal_group(int number) const { kill(-process_, number); }

Result Program::wait(double limit) {
  Result result;
  const auto begin = Clock::now();
  int status = 0;
  reaped_ = within(limit, [&] { return waitpid(process_, &status, WNOHANG) == process_; });
  result.seconds = seconds_since(begin);
  if (reaped_) {
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    within(0.5, [&] { return living().empty(); });
  }
  result.left_running = static_cast<int>(living().size());
  result.out = out();
  result.error = error();
  return result;
}

Result run(const RunFolder& folder, const std::vector<std::string>& arguments,
           const StartOptions& options) {
  return Program(folder, arguments, options).wait(60);
}

bool within(double limit, const std::function<bool()>& what) {
  const auto begin = Clock::now();
  while (!what()) {
    if (seconds_since(begin) > limit) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::vector<std::int64_t> steps_in(const fs::path& metrics) {
  std::vector<std::int64_t> steps;
  for (const std::string& line : lines_of(read_file(metrics))) {
    const auto object = nlohmann::json::parse(line, nullptr, false);
    steps.push_back(object.is_object() ? object.value("step", std::int64_t{-1}) : -1);
  }
  return steps;
}

std::vector<std::int64_t> steps_to(std::int64_t n) {
  std::vector<std::int64_t> steps;
  for (std::int64_t step = 1; step <= n; ++step) {
    steps.push_back(step);
  }
  return steps;
}

std::int64_t step_after(const std::string& text, const std::string& words) {
  const std::size_t at = text.find(words);
  std::int64_t step = -1;
  if (at != std::string::npos) {
    const char* begin = text.data() + at + words.size();
    std::from_chars(begin, text.data() + text.size(), step);
  }
  return step;
}

std::vector<std::string> checkpoints(const fs::path& folder) {
  std::vector<std::string> names;
  if (fs::is_directory(folder)) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with('.')) {  // the lock of a run
        names.push_back(name);
      }
    }
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace faults
