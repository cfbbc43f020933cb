export module tessera.app.base;

export import :standard;        // names of the standard library for interfaces
export import :machine;         // the machine, this process' memory
export import :output_file;     // files that a command writes where the user says
export import :process;         // limits and streams of this process
export import :scratch_folder;  // a temporary folder
export import :stopwatch;       // how long something takes
export import :table;           // tables, counts and durations as text
export import :timeline;        // rows of bars as an SVG picture
