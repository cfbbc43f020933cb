module tessera.app.commands:command_tree;

import tessera.app.base;

extern "C++" {  // not of this module
namespace CLI {
class App;
}
}

namespace tessera::app {

/// An option of a command, or one of its positional words.
struct CommandOption {
  std::vector<std::string> names = {};    // "--help", "-h"; none: it is positional
  std::string word = {};                  // what a positional one is called: "CONFIG"
  std::string value = {};                 // the kind of its value: "INT"; empty: it has none
  std::vector<std::string> choices = {};  // all that its value may be; none: anything
  std::string about = {};
  bool required = false;
};

/// A command with its sub-commands.
struct CommandNode {
  std::string name = {};  // its own word
  std::string about = {};
  std::vector<CommandOption> options = {};
  std::vector<CommandNode> commands = {};
};

/// The commands of the program as it parses them.
CommandNode command_tree(const CLI::App& program);

/// A script that completes the commands and options of the program in "bash", "zsh" or "fish".
std::string completion_script(const CommandNode& program, const std::string& shell);

/// The manual page of the program, in the language of man(7). `version`: of the program.
std::string manual_page(const CommandNode& program, const std::string& version);

}  // namespace tessera::app
