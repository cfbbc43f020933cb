module;
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
module tessera.app.commands;

import tessera.base;
import tessera.app.base;
import tessera.text;
import :stored_paths;
import :subcommands;
import :text_commands;

namespace tessera::app {
namespace {

volatile std::sig_atomic_t interrupted = 0;

/// While it exists, Ctrl-C sets `interrupted` instead of ending the program.
class Interruptible {
 public:
  Interruptible() {
    interrupted = 0;
    struct sigaction action = {};
    action.sa_handler = [](int) { interrupted = 1; };
    sigaction(SIGINT, &action, &before_);
  }
  ~Interruptible() { sigaction(SIGINT, &before_, nullptr); }
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  struct sigaction before_ = {};
};

/// The lines of stdin. Waiting for one ends when the ranks are to stop: their signals do not
/// interrupt the wait.
class InputLines {
 public:
  /// False: there is none any more. Error: an interrupt, or a rank that has failed.
  bool next(std::string& line, const text::ModelRanks& ranks) {
    std::size_t end = 0;
    while ((end = read_.find('\n')) == std::string::npos && !ended_) {
      ranks.check_others();
      ranks.check_interrupt();
      pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      constexpr int milliseconds = 100;
      if (poll(&input, 1, milliseconds) > 0) {
        std::array<char, 4096> part{};
        const ssize_t count = ::read(STDIN_FILENO, part.data(), part.size());
        ended_ = count <= 0;
        read_.append(part.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
      }
    }
    line = read_.substr(0, end);
    read_.erase(0, end == std::string::npos ? end : end + 1);
    return !ended_ || end != std::string::npos || !line.empty();
  }

 private:
  std::string read_;
  bool ended_ = false;
};

constexpr std::string_view help =
    "/reset        forget the conversation\n"
    "/system TEXT  set the message of the system, and forget the conversation\n"
    "/history      print the conversation\n"
    "/exit         end, as does the end of the input\n"
    "//TEXT        a question that begins with a slash\n"
    "Ctrl-C        end an answer\n";

class Conversation {
 public:
  Conversation(const text::TextModel& model, const ChatArguments& arguments)
      : ranks_(model.ranks()),
        terminal_(isatty(STDIN_FILENO) == 1),
        chat_(model, arguments.chat_template, arguments.options, arguments.engine) {
    chat_.set_system(arguments.system);
    note_slow(chat_.slow_because());
  }

  void run() {
    if (terminal_) {
      fmt::print("/help lists the commands.\n");
    }
    std::string line;
    while (!ended_ && next_line(line)) {
      try {
        take(line);
      } catch (const Error& error) {
        ranks_.check_others();
        if (!terminal_ || error.kind() != ErrorKind::input) {
          throw;
        }
        fmt::print("error: {}\n", error.what());
      }
      std::fflush(stdout);
    }
  }

 private:
  bool next_line(std::string& line) {
    if (terminal_) {
      fmt::print("> ");
      std::fflush(stdout);
    }
    return input_.next(line, ranks_);
  }

  void take(std::string_view line) {
    constexpr std::string_view system = "/system";
    if (line.starts_with("//")) {
      ask(line.substr(1));
    } else if (line == "/reset") {
      chat_.reset();
    } else if (line == system || line.starts_with("/system ")) {
      line.remove_prefix(std::min(line.size(), system.size() + 1));
      chat_.set_system(std::string(line));
    } else if (line == "/history") {
      for (const text::ChatMessage& message : chat_.messages()) {
        fmt::print("{}: {}\n", message.role, message.content);
      }
    } else if (line == "/help") {
      fmt::print("{}", help);
    } else if (line == "/exit") {
      ended_ = true;
    } else if (line.starts_with('/')) {
      fail_input({.thing = std::string(line.substr(0, 30)),
                  .wrong = "there is no such command",
                  .advice = "/help lists them; a question that begins with a slash needs two"});
    } else if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      ask(line);
    }
  }

  void ask(std::string_view question) {
    const Interruptible interruptible;
    chat_.answer(std::string(question), [](std::size_t, const text::TextPart& part) {
      std::fwrite(part.text.data(), 1, part.text.size(), stdout);
      std::fflush(stdout);
      return interrupted == 0;
    });
    fmt::print("\n");
  }

  const text::ModelRanks& ranks_;
  bool terminal_;
  InputLines input_;
  bool ended_ = false;
  text::Chat chat_;
};

}  // namespace

int run_chat(const ChatArguments& given) {
  ChatArguments arguments = given;
  InputCopies copies;
  copies.take(arguments.chat_template);
  return use_model(arguments, [&](const text::TextModel& model) {
    Conversation(model, arguments).run();
    return 0;
  });
}

}  // namespace tessera::app
