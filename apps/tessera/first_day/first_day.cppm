// The program `tessera-first-day`: what a pack does on a machine with a GPU.
export module tessera.app.first_day;

export import :command;  // its command line
