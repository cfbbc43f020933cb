export module tessera.app.commands;

export import :command_line;  // the program
export import :subcommands;   // one function for each sub-command
