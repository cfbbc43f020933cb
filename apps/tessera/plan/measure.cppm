export module tessera.app.plan:measure;

import tessera.base;
import tessera.program;
import tessera.app.base;
import :hardware;

// Rates of this machine, and the time of each kernel of a program on it.

export namespace tessera::app {

/// The rates of this machine's CPU, and of what is between ranks on it, with as many ranks as it
/// has cores for and `ranks` at the most, each with `threads` threads. Before any thread exists.
Hardware measure_hardware(int ranks, int threads);

/// Seconds of each kernel of a rank's program; 0 of what is none. It is executed without the other
/// ranks: values are arbitrary, and no collective is made. As many ranks as above do it at the same
/// time, as they share memory and caches; each instruction counts with its median round. It needs
/// the memory of the step. Errors: those of the operators.
ByPlace<double> measure_kernels(const Program& program, int ranks, int threads);

}  // namespace tessera::app
