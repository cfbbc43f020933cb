export module tessera.app.base;

export import :standard;        // names of the standard library for interfaces
export import :device_rates;    // what a device computes and moves in a second
export import :machine;         // the machine, this process' memory
export import :process;         // limits and streams of this process
export import :scratch_folder;  // a temporary folder
export import :table;           // tables, and lines of text
export import :timeline;        // rows of bars as an SVG picture
