export module tessera.app.run;

export import :plan_table;    // the table before the first step
export import :checked_plan;  // what a plan says of a run before its ranks start
export import :saved_state;   // what a run begins with, compared with its config
export import :start;         // what a run looks at before it starts
export import :run_lock;      // one run at a time writes a folder
export import :rank_run;      // what one rank does, with its outputs
export import :healing;       // ranks that die are started again
export import :ranks_here;    // ranks that do something for a command
export import :first_steps;   // the first steps of a run, as a program of their own
