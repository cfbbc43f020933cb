// The program `tessera` as a process of its own: started, watched, hurt, and looked at afterwards.
#pragma once
#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "folder.hpp"
#include "texts.hpp"

namespace faults {

using tessera::testing::count;
using tessera::testing::lines_of;

/// A folder with the config of a small run on four ranks, and its text.
class RunFolder : public tessera::testing::Folder {
 public:
  RunFolder();
  /// Every entry below the folder, with its size.
  std::map<std::string, std::uintmax_t> listing() const;
};

/// The config that RunFolder writes as run.toml: FSDP 2 x tensor parallel 2, a very small Llama.
extern const char* const small_run;

/// 64 KiB of words, the same every time.
std::string small_text();

/// The bytes of a file; "" where there is none yet.
std::string read_file(const std::filesystem::path& path);

/// What stands in /dev/shm with the library's name.
std::set<std::string> shared_memory();

struct Result {
  int code = -1;         ///< exit code; 128 + signal when killed; -1 when it did not end in time
  double seconds = 0;    ///< from the call of wait() to the end
  std::string out;       ///< its stdout
  std::string error;     ///< its stderr
  int left_running = 0;  ///< processes of its group that are left half a second after its end
};

struct StartOptions {
  std::map<std::string, std::string> environment = {};     ///< set besides what this process has
  long file_size_limit = 0;                                ///< RLIMIT_FSIZE in bytes; 0: none
  std::vector<std::pair<int, unsigned long>> limits = {};  ///< RLIMIT_... and its value
  std::vector<int> ignored = {};           ///< signals that are ignored at its start (nohup)
  std::vector<int> blocked = {};           ///< and those that are blocked
  std::vector<std::string> launcher = {};  ///< `mpirun -np 2` in front of the program
  int out = -1;               ///< descriptor for its stdout; -1: a file; -2: stdout is closed
  bool fixed_limits = false;  ///< the program cannot raise the limits, not even as root
};

/// A running `tessera ARGUMENTS...` in a process group of its own, which dies with the object.
class Program {
 public:
  Program(const RunFolder& folder, const std::vector<std::string>& arguments,
          const StartOptions& options = {});
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();
  pid_t process() const { return process_; }
  /// The ranks' processes in the order of the ranks.
  std::vector<pid_t> ranks() const;
  /// Living processes of the group; those that ended and wait for their parent do not count.
  std::vector<pid_t> living() const;
  std::string out() const;
  std::string error() const;
  void signal(int number) const;
  void signal_group(int number) const;
  /// Waits for the program's end, at most `limit` seconds.
  Result wait(double limit);

 private:
  pid_t process_ = 0;
  bool reaped_ = false;
  std::string out_;
  std::string error_;
};

/// Runs it to its end.
Result run(const RunFolder& folder, const std::vector<std::string>& arguments,
           const StartOptions& options = {});

/// Runs it and checks that it is one clear error with exit code 2 that holds all `words`, with
/// nothing written and nothing left running.
void is_refused(const RunFolder& folder, const std::vector<std::string>& arguments,
                const std::vector<std::string>& words);

struct Case {
  std::vector<std::string> arguments;  ///< after `train run.toml`
  std::vector<std::string> words;
};
void are_refused(const RunFolder& folder, const std::vector<Case>& cases);

/// Looks every few milliseconds; false when `what` has not become true within `limit` seconds.
bool within(double limit, const std::function<bool()>& what);

/// The steps of a metrics file in its order.
std::vector<std::int64_t> steps_in(const std::filesystem::path& metrics);
/// 1, 2, ... n.
std::vector<std::int64_t> steps_to(std::int64_t n);
/// The step that `text` names after `words`; -1 if there is none.
std::int64_t step_after(const std::string& text, const std::string& words);
/// The complete and incomplete checkpoints: the names in the folder, sorted.
std::vector<std::string> checkpoints(const std::filesystem::path& folder);

}  // namespace faults
