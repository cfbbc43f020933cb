// How a step becomes a program.
export module tessera.capture;

export import :recording;  // Recording: one execution of a step; program_of
export import :recorder;   // Recorder: the mode that records a step
export import :lower;  // lower: the program of a rank, of one that was recorded above distribution
export import :captured_function;  // CapturedFunction: which program a call has
