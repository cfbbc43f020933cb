module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.app.base;
import :command_tree;

// The commands of the program as data, for manual page and completions.
namespace tessera::app {
namespace {

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

/// The values in "TEXT:{a,b}", as CLI11 describes a set; a range or a type has none.
std::vector<std::string> choices_in(std::string_view type) {
  std::vector<std::string> choices;
  const std::size_t open = type.find(":{");
  if (open == std::string_view::npos || !type.ends_with('}')) {
    return choices;
  }
  std::string_view values = type.substr(open + 2, type.size() - open - 3);
  while (!values.empty()) {
    const std::size_t end = std::min(values.find(','), values.size());
    const std::string_view value = values.substr(0, end);
    choices.emplace_back(value.substr(0, value.find("->")));  // of a map: what it stands for
    values.remove_prefix(std::min(end + 1, values.size()));
  }
  return choices;
}

CommandOption described(const CLI::Option& option) {
  CommandOption described{.about = one_line(option.get_description()),
                          .required = option.get_required()};
  for (const std::string& name : option.get_lnames()) {
    described.names.push_back("--" + name);
  }
  for (const std::string& name : option.get_snames()) {
    described.names.push_back("-" + name);
  }
  described.word = described.names.empty() ? option.get_name() : "";
  if (option.get_items_expected_max() > 0) {
    const std::string type = option.get_type_name();
    described.choices = choices_in(type);
    described.value = type.substr(0, type.find(':'));
  }
  return described;
}

CommandNode node_of(const CLI::App& command) {
  CommandNode node{.name = command.get_name(), .about = one_line(command.get_description())};
  for (const CLI::Option* option : command.get_options()) {
    node.options.push_back(described(*option));
  }
  for (const CLI::App* inner : command.get_subcommands([](const CLI::App*) { return true; })) {
    node.commands.push_back(node_of(*inner));
  }
  return node;
}

/// Calls `body` for every command with the words before it, outer ones first.
void walk(const CommandNode& node, const std::vector<std::string>& before,
          const std::function<void(const CommandNode&, const std::vector<std::string>&)>& body) {
  body(node, before);
  for (const CommandNode& inner : node.commands) {
    std::vector<std::string> words = before;
    words.push_back(inner.name);
    walk(inner, words, body);
  }
}

/// What may come at a command's place: its sub-commands or the choices of its first positional
/// word.
std::vector<std::string> words_at(const CommandNode& node) {
  std::vector<std::string> words;
  for (const CommandNode& inner : node.commands) {
    words.push_back(inner.name);
  }
  for (const CommandOption& option : node.options) {
    if (option.names.empty()) {
      words.insert(words.end(), option.choices.begin(), option.choices.end());
      break;
    }
  }
  return words;
}

std::vector<std::string> option_names(const CommandNode& node) {
  std::vector<std::string> names;
  for (const CommandOption& option : node.options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

/// The function of bash that knows which command a line is in; zsh reads it too.
std::string path_function(const CommandNode& program) {
  std::string cases;
  walk(program, {}, [&](const CommandNode&, const std::vector<std::string>& words) {
    if (!words.empty()) {
      cases += fmt::format("      '{}') at=\"$next\" ;;\n", fmt::join(words, " "));
    }
  });
  return "  local at='' next word\n"
         "  for word in \"${before[@]}\"; do\n"
         "    next=\"${at:+$at }$word\"\n"
         "    case \"$next\" in\n" +
         cases +
         "    esac\n"
         "  done\n";
}

/// Sets `candidates` by the command that the line is in, and by the option before the word.
std::string candidate_cases(const CommandNode& program) {
  std::string values;
  std::string commands;
  walk(program, {}, [&](const CommandNode& node, const std::vector<std::string>& words) {
    const std::string at = fmt::format("{}", fmt::join(words, " "));
    for (const CommandOption& option : node.options) {
      for (const std::string& name : option.names) {
        if (!option.value.empty()) {
          values += fmt::format("    '{}:{}') candidates='{}'; valued=1 ;;\n", at, name,
                                fmt::join(option.choices, " "));
        }
      }
    }
    commands +=
        fmt::format("      '{}:-') candidates='{}' ;;\n      '{}:') candidates='{}' ;;\n", at,
                    fmt::join(option_names(node), " "), at, fmt::join(words_at(node), " "));
  });
  return "  local candidates='' valued='' first=''\n"
         "  [[ $current == -* ]] && first='-'\n"
         "  case \"$at:$last\" in\n" +
         values +
         "  esac\n"
         "  if [[ -z $valued ]]; then\n"
         "    case \"$at:$first\" in\n" +
         commands +
         "    esac\n"
         "  fi\n";
}

std::string bash_script(const CommandNode& program) {
  return "# Completes tessera in bash; written by: tessera completion bash\n"
         "_tessera() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD-1]}\n"
         "  local before=(\"${COMP_WORDS[@]:1:COMP_CWORD-1}\")\n" +
         path_function(program) + candidate_cases(program) +
         "  mapfile -t COMPREPLY < <(compgen -W \"$candidates\" -- \"$current\")\n"
         "}\n"
         "complete -o default -F _tessera tessera\n";
}

std::string zsh_script(const CommandNode& program) {
  return "#compdef tessera\n"
         "# Completes tessera in zsh; written by: tessera completion zsh\n"
         "_tessera() {\n"
         "  local current=${words[CURRENT]} last=${words[CURRENT-1]}\n"
         "  local -a before=(\"${(@)words[2,CURRENT-1]}\")\n" +
         path_function(program) + candidate_cases(program) +
         "  if [[ -n $candidates ]]; then\n"
         "    compadd -- ${=candidates}\n"
         "  else\n"
         "    _files\n"
         "  fi\n"
         "}\n"
         "_tessera \"$@\"\n";
}

std::string fish_script(const CommandNode& program) {
  std::string script =
      "# Completes tessera in fish; written by: tessera completion fish\n"
      "function __tessera_at\n"
      "  set -l at\n"
      "  for word in (commandline -opc)[2..]\n"
      "    switch (string join -- ' ' $at $word)\n";
  walk(program, {}, [&](const CommandNode&, const std::vector<std::string>& words) {
    if (!words.empty()) {
      script += fmt::format("      case '{}'\n        set at $at $word\n", fmt::join(words, " "));
    }
  });
  script +=
      "    end\n"
      "  end\n"
      "  set -l here (string join -- ' ' $at)\n"
      "  test \"$here\" = \"$argv\"\n"
      "end\n";
  walk(program, {}, [&](const CommandNode& node, const std::vector<std::string>& words) {
    const std::string here =
        fmt::format("complete -c tessera -n \"__tessera_at '{}'\"", fmt::join(words, " "));
    for (const CommandNode& inner : node.commands) {
      script += fmt::format("{} -f -a {} -d {}\n", here, inner.name, shell_word(inner.about));
    }
    for (const CommandOption& option : node.options) {
      if (option.names.empty()) {
        if (!option.choices.empty()) {
          script += fmt::format("{} -f -a '{}'\n", here, fmt::join(option.choices, " "));
        }
        continue;
      }
      script += here;
      for (const std::string& name : option.names) {
        script += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (!option.choices.empty()) {
        script += fmt::format(" -x -a '{}'", fmt::join(option.choices, " "));
      } else if (!option.value.empty()) {
        script += " -r";
      }
      script += " -d " + shell_word(option.about) + "\n";
    }
  });
  return script;
}

/// A text of man(7): its own characters are escaped.
std::string roff(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else if ((c == '.' || c == '\'') && (escaped.empty() || escaped.back() == '\n')) {
      escaped += std::string("\\&") + c;
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string option_entry(const CommandOption& option) {
  std::string head = option.names.empty()
                         ? "\\fI" + roff(option.word) + "\\fR"
                         : "\\fB" + roff(fmt::format("{}", fmt::join(option.names, ", "))) + "\\fR";
  if (!option.names.empty() && !option.value.empty()) {
    head += " \\fI" + roff(option.value) + "\\fR";
  }
  std::string about = option.about;
  if (!option.choices.empty()) {
    about += fmt::format(" ({})", fmt::join(option.choices, ", "));
  }
  return fmt::format(".TP\n{}\n{}\n", head, roff(about));
}

}  // namespace

CommandNode command_tree(const CLI::App& program) { return node_of(program); }

std::string completion_script(const CommandNode& program, const std::string& shell) {
  const std::pair<const char*, std::string (*)(const CommandNode&)> shells[] = {
      {"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};
  std::vector<std::string> names;
  for (const auto& [name, script] : shells) {
    if (name == shell) {
      return script(program);
    }
    names.emplace_back(name);
  }
  fail_input({.thing = "completion",
              .wrong = fmt::format("there is none for '{}'", shell),
              .expected = join_words(names)});
}

std::string manual_page(const CommandNode& program, const std::string& version) {
  std::string page = fmt::format(
      ".TH TESSERA 1 \"\" \"tessera {}\" \"User Commands\"\n"
      ".SH NAME\ntessera \\- distributed training of large models\n"
      ".SH SYNOPSIS\n.B tessera\n.I COMMAND\n.RI [ ARGUMENTS ]\n"
      ".SH DESCRIPTION\n{}\n"
      "Every command has the option\n.BR \\-\\-help .\n"
      ".SH COMMANDS\n",
      roff(version), roff(program.about));
  walk(program, {}, [&](const CommandNode& node, const std::vector<std::string>& words) {
    if (words.empty()) {
      return;
    }
    page += fmt::format(".SS tessera {}\n{}.\n", roff(fmt::format("{}", fmt::join(words, " "))),
                        roff(node.about));
    for (const CommandOption& option : node.options) {
      if (std::ranges::find(option.names, "--help") == option.names.end()) {  // every command's
        page += option_entry(option);
      }
    }
  });
  page +=
      ".SH EXIT STATUS\n"
      ".TP\n0\nThe command has done what it says.\n"
      ".TP\n1\nSomething failed while it ran, or what was compared differs.\n"
      ".TP\n2\nThe arguments, the config or a file is wrong.\n"
      ".TP\n130\nIt was interrupted.\n";
  return page;
}

}  // namespace tessera::app
