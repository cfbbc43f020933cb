export module tessera.app.commands;

export import :command_line;   // the program
export import :subcommands;    // one function for each sub-command
export import :tools;          // those of the program tessera-tools
export import :draw_pipeline;  // a picture of a schedule
export import :draw_program;   // a picture of a captured step
export import :page;           // pages in HTML
export import :program_file;   // captured steps in files
export import :run_data;       // a run's config and data
