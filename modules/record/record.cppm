// A whole step as a linear program: recorded above or below distribution, written as text, executed
// again.
export module tessera.record;

export import :expression;  // how numbers follow from what differs between steps
export import :program;     // Program: instructions on numbered local tensors; its text
export import :recorder;    // Recorder: the mode that records a step
export import :guard;       // guard: a value that decides how a step continues
export import :executor;    // Executor: what executes a program, step by step
export import :replay;      // Replay: executes a program by calls of its operators
export import :lower;  // lower: the program of a rank, of one that was recorded above distribution
