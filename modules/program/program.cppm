// A step of one rank as a linear program: instructions on numbered tensors, the text form, and what
// is known of a program.
export module tessera.program;

export import :index;           // Index, Table: numbers of things of one kind
export import :roles;           // Role, SectionKind, Phase: what inputs and instructions are for
export import :expression;      // how numbers follow from what differs between steps
export import :instructions;    // Program: instructions, sections, inputs and outputs; its text
export import :guard;           // guard: a value that decides how a step continues
export import :shadow;          // Shadow: a program's tensors on the meta device, and its memories
export import :accesses;        // Access: what an instruction reads and writes
export import :analysis;        // Analysis: what is known of a program's memories and order
export import :analysis_state;  // the two together
export import :values;          // Values: a program executed on descriptions of values
export import :verify;          // verify, verify_same: what a program must be, and what passes keep
export import :statistics;      // statistics_of: calls, collectives and memory of a program
export import :communication;   // communication_of: what ranks must have alike
export import :regions;         // regions_of: a program by phase and module
export import :difference;      // difference: the lines in which two texts differ
