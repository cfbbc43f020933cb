module;
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>
module tessera.app.commands;

import tessera.base;
import tessera.app.base;
import tessera.app.generation;
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

constexpr std::string_view help =
    "/reset        forget the conversation\n"
    "/system TEXT  set the message of the system, and forget the conversation\n"
    "/history      print the conversation\n"
    "/exit         end, as does the end of the input\n"
    "//TEXT        a question that begins with a slash\n"
    "Ctrl-C        end an answer\n";

class Conversation {
 public:
  Conversation(const TextModel& model, const ChatArguments& arguments)
      : terminal_(isatty(STDIN_FILENO) == 1),
        chat_(model, arguments.chat_template, arguments.options) {
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
        if (!terminal_ || error.kind() != ErrorKind::input) {
          throw;
        }
        fmt::print("error: {}\n", error.what());
      }
      std::fflush(stdout);
    }
  }

 private:
  bool next_line(std::string& line) const {
    if (terminal_) {
      fmt::print("> ");
      std::fflush(stdout);
    }
    return static_cast<bool>(std::getline(std::cin, line));
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
      for (const ChatMessage& message : chat_.messages()) {
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
    chat_.answer(std::string(question), [](std::size_t, const std::string& part) {
      std::fwrite(part.data(), 1, part.size(), stdout);
      std::fflush(stdout);
      return interrupted == 0;
    });
    fmt::print("\n");
  }

  bool terminal_;
  bool ended_ = false;
  Chat chat_;
};

}  // namespace

int run_chat(const ChatArguments& arguments) {
  const TextModel model(arguments.model, arguments.tokenizer);
  Conversation(model, arguments).run();
  return 0;
}

}  // namespace tessera::app
