// The foundation of all modules: errors, small containers, data types, logging, environment.
export module tessera.base;

export import :standard;           // the standard library names that interfaces use
export import :error;              // Error, its kinds, fail()
export import :dtype;              // DType: f32, f64, bf16, f16, i64, i32, u8, bool
export import :device;             // Device as a plain value
export import :containers;         // Dims, InlineVector, hashing
export import :intrusive_pointer;  // a pointer to an object that counts its references
export import :reduce_op;          // ReduceOp: sum, avg, max, min, product
export import :reflect;            // the fields of an aggregate
export import :text;               // nearest names, byte counts, patterns
export import :log;                // log lines on stderr
export import :file;               // write_file: complete, or as it was
export import :folder;             // folders that appear complete, are kept open, or are removed
export import :output;             // files and folders where the user says, stdout
export import :side_work;          // what a run does besides training, and may fail
export import :environment;        // environment variables, terminal
export import :waiting;            // Patience: every wait says what it waits for, and has an end
export import :file_lock;          // FileLock: one process at a time
export import :child;              // code that may crash or never return, and programs
