#!/usr/bin/env perl
# Plants the faults of the lists in this folder, one at a time, in a copy of the tree, and runs the test that claims to
# catch each. See docs/testing.md.
#
#   mutants.pl check REPOSITORY BUILD          every fault still fits its file, and its test exists
#   mutants.pl run REPOSITORY BUILD NINJA [NAME...]
#                                              plants all faults, or those that are named here or in TESSERA_MUTANTS;
#                                              TESSERA_MUTANTS_WORKERS of them at once (2)
#
# A list that begins with a line `needs: PROGRAM` is left out where the build has no such test: that of a plugin whose
# library is not there.
#
# An entry of a list:
#   [name]
#   in: the function that has the fault ("Engine::publish"), or a variable with its value. Its source's name stands
#       before it where several have such a text ("softmax.cpp rule"). Only bodies (.cpp, .cu) are searched: an interface
#       would rebuild hundreds of files
#   run: the test's program and its arguments; environment variables may stand before it
#   missed: REASON                             only of a fault that no test catches, or that was not run yet
#   sometimes: REASON                          only of a fault that is not caught in every run
#   - text that occurs exactly once in the functions of this name, however lines are broken
#   + what replaces it
# Several lines that begin with `- ` (or `+ `) are one text; several pairs are replaced one after the other, in one
# source. A line `in:` between them is for those that follow. So a fault moves with its function, and formatting does not
# concern it.
use strict;
use warnings;
use Cwd qw(abs_path);
use Digest::MD5 qw(md5_hex);
use Fcntl qw(:flock);
use File::Basename qw(basename dirname);
use File::Find qw(find);
use File::Path qw(make_path remove_tree);
use File::Temp qw(tempdir);
use FindBin;
use List::Util qw(min);
use POSIX ();
use lib "$FindBin::Bin/../../cmake";
use Functions qw(functions_in);
use lib "$FindBin::RealBin/../support";
use Files qw(text_of write_file);

my $usage = "usage: mutants.pl check REPOSITORY BUILD | run REPOSITORY BUILD NINJA [NAME...]\n";
my ($mode, $repository, $build, $ninja, @names) = @ARGV;
die $usage unless defined $build && ($mode eq 'check' || $mode eq 'run' && defined $ninja);
$_ = abs_path($_) // die "no such folder\n" for $repository, $build;
my $lists = "$repository/tests/mutants";
my $seconds_for_a_test = 300;
my $skipped = 77;  # ctest shows it as skipped
my $record = 8;    # bytes that name a fault in the workers' queue
$| = 1;

# All entries, in the order of the files and lines.
sub read_lists {
  my @faults;
  for my $list (sort glob "$lists/*.faults") {
    my ($fault, $sign, $function) = (undef, '', undef);
    my $number = 0;
    for my $line (split /\n/, text_of($list)) {
      my $place = "$list:" . ++$number;
      if ($line =~ /^needs: (test_\w+)$/) {
        last unless -e "$build/bin/$1";
        next;
      }
      if ($line =~ /^\[(\w+)\]$/) {
        $fault = { name => $1, place => $place, pairs => [] };
        push @faults, $fault;
        undef $function;
      } elsif ($fault && $line =~ /^in: (?:(\S+) )?(\S+)$/) {
        $function = { source => $1, name => $2 };
      } elsif ($fault && $line =~ /^(run|missed|sometimes): (.*\S)$/) {
        die "$place: '$1' is given twice\n" if exists $fault->{$1};
        $fault->{$1} = $2;
      } elsif ($fault && $line =~ /^([-+])(?: (.*))?$/) {
        my ($now, $text) = ($1, $2 // '');
        my $pairs = $fault->{pairs};
        die "$place: '+' before '-'\n" if $now eq '+' && !@$pairs;
        if ($now eq '-' && $sign ne '-') {
          die "$place: 'in' is missing\n" unless defined $function;
          push @$pairs, { %$function, old => $text };
        } elsif ($now eq '-') {
          $pairs->[-1]{old} .= "\n$text";
        } else {
          $pairs->[-1]{new} = defined $pairs->[-1]{new} ? "$pairs->[-1]{new}\n$text" : $text;
        }
        $sign = $now;
        next;
      } elsif ($line !~ /^(?:#.*)?$/) {
        die "$place: not a line of a fault: $line\n";
      }
      $sign = '';
    }
  }
  return @faults;
}

# function -> the places where it is defined: [file, first offset, offset behind it].
sub read_functions {
  my %places;
  find({ no_chdir => 1, wanted => sub {
    return unless /\.(?:[ch]pp|cu)$/;
    my $path = $_;
    push @{ $places{ $_->[0] } }, [$path, @$_[1, 2]] for functions_in(text_of($path));
  } }, grep { -d } map { "$repository/$_" } qw(modules plugins apps tests));
  return %places;
}

# What matches the text, with any white space between its words and signs.
sub pattern_of {
  my ($text) = @_;
  return join '\s*', map { quotemeta } $text =~ /\w+|[^\w\s]/g;
}

# Where the fault's function has the texts: sets `file`, and `planted`, the source with the fault in it.
sub plant {
  my ($fault, $functions) = @_;
  my $name = "$fault->{place}: $fault->{name}";
  my $text;
  for my $pair (@{ $fault->{pairs} }) {
    die "$name: the replacement is missing or changes nothing\n" if !defined $pair->{new} || $pair->{new} eq $pair->{old};
    my @places = @{ $functions->{ $pair->{name} } // [] };
    @places = grep { basename($_->[0]) eq $pair->{source} } @places if defined $pair->{source};
    # A second text is in the source of the first, which has changed.
    @places = map { [$fault->{file}, @$_[1, 2]] } grep { $_->[0] eq $pair->{name} } functions_in($text) if defined $text;
    die "$name: no source defines $pair->{name}; adapt the list\n" unless @places;
    my $pattern = pattern_of($pair->{old});
    my @found;
    for my $place (@places) {
      my ($file, $begin, $end) = @$place;
      my $source = $text // text_of($file);
      my $code = substr $source, $begin, $end - $begin;
      while ($code =~ /$pattern/g) {
        push @found, [$file, $source, $begin + $-[0], $+[0] - $-[0]];
      }
    }
    die "$name: the text is in $pair->{name} " . scalar(@found) . " times (expected once); adapt the list\n" unless @found == 1;
    my ($at, $length);
    ($fault->{file}, $text, $at, $length) = @{ $found[0] };
    substr $text, $at, $length, $pair->{new};
  }
  $fault->{file} =~ s{^\Q$repository/\E}{};
  $fault->{planted} = $text;
}

# The program of a test: the first word that sets no variable.
sub program_of {
  my ($fault) = @_;
  my ($program) = $fault->{run} =~ /^(?:\w+=\S*\s+)*(test_\w+)(?:\s|$)/
    or die "$fault->{place}: $fault->{name}: 'run' names no test program\n";
  return $program;
}

sub in_build {
  my ($fault) = @_;
  return $fault->{run} =~ s{\btest_}{build/release/bin/test_}r;
}

sub check_entries {
  my @faults = @_;
  my %seen;
  my %functions = read_functions();
  for my $fault (@faults) {
    die "$fault->{place}: $fault->{name}: 'run' is missing\n" unless defined $fault->{run};
    die "$fault->{place}: '$fault->{name}' is the name of two faults\n" if $seen{ $fault->{name} }++;
    die "$fault->{place}: $fault->{name}: nothing is replaced\n" unless @{ $fault->{pairs} };
    plant($fault, \%functions);
    program_of($fault);
  }
}

# The names of a program's cases, also of the hidden ones.
my %cases;
sub cases_of {
  my ($program) = @_;
  return @{ $cases{$program} //= [map { /^  (\S.*)$/ ? lc $1 : () } `$build/bin/$program --list-tests '*,[.]' --verbosity quiet 2>&1`] };
}

# Whether a filter that is nothing but a name, with a star before or behind it, selects a case; undefined: it is another one.
sub selects_by_name {
  my ($program, $arguments) = @_;
  my ($name) = $arguments =~ /^\s*"([^"\\,\[\]~]+)"\s*$/ or return undef;
  my $pattern = join '.*', map { quotemeta } split /\*/, lc $name, -1;
  return scalar grep { /^$pattern$/ } cases_of($program);
}

# A filter that names no case would pass for a test.
sub check_filters {
  my %done;
  for my $fault (@_) {
    my ($arguments) = $fault->{run} =~ /\btest_\w+(.*)/;
    my $program = program_of($fault);
    next if $done{"$program$arguments"}++;
    next if selects_by_name($program, $arguments);
    my $listed = `$build/bin/$program --list-tests $arguments 2>&1`;
    die "$fault->{place}: $fault->{name}: no case of $program is selected by$arguments\n"
      unless $listed =~ /^([1-9]\d*) (?:matching )?test case/m;
  }
}

my @faults = read_lists();
check_entries(@faults);
if ($mode eq 'check') {
  check_filters(@faults);
  printf "%d faults fit their files\n", scalar @faults;
  exit 0;
}

# A fault may leave a parameter or a function unused.
$ENV{CCC_OVERRIDE_OPTIONS} = '# +-Wno-error';

my $scratch = dirname($build) . '/mutants';
my $results = "$scratch/results";
# Copies of a worker, beside BUILD: `base` is the tree as it is now; `work` is it with one fault.
my ($base, $work, $stamp, $log);

# Runs a command where the copy `work` stands in the place of the repository, as the build's paths need; with its own
# processes and shared memory, of which nothing is left. Returns the exit status (124: it took too long).
sub in_copy {
  my ($seconds, $command, $log) = @_;
  my @unshare = ('unshare', '--mount', '--pid', '--fork', '--mount-proc', '--kill-child', $> == 0 ? () : '--map-root-user');
  my $inside = "mount --bind '$work' '$repository' && mount -t tmpfs tmpfs /dev/shm && cd '$repository' && { $command ; }";
  my $status = system('timeout', '-k', '5', $seconds, @unshare, 'bash', '-c', "{ $inside ; } >'$log' 2>&1 </dev/null");
  die "interrupted\n" if ($status & 127) == POSIX::SIGINT;
  return $status < 0 ? 255 : $status & 127 ? 124 : $status >> 8;
}

sub copy {
  my ($from, $to) = @_;
  remove_tree($to);
  make_path($to);
  system("cp -a '$from/.' '$to/'") == 0 or die "cannot copy $from to $to\n";
}

# Makes `work` the same as `base` again, after commands that have changed files since `begin_changes`.
sub begin_changes {
  write_file($stamp, '');
  select undef, undef, undef, 0.05;  # so that what follows is newer
}

sub changed_files {
  return split /\n/, `cd '$work' && find . -newer '$stamp' -type f`;
}

# What commands without a fault have built is not built again.
sub keep_changes {
  for my $file (changed_files()) {
    make_path(dirname("$base/$file"));
    system('cp', '-p', "$work/$file", "$base/$file") == 0 or die "cannot copy $work/$file\n";
  }
}

sub undo_changes {
  my ($fault) = @_;
  for my $file ($fault->{file}, changed_files()) {
    if (-e "$base/$file") {
      system('cp', '-p', "$base/$file", "$work/$file") == 0 or die "cannot copy $base/$file\n";
    } else {
      unlink "$work/$file";
    }
  }
}

sub make_base {
  remove_tree($base);
  make_path("$base/build/release");
  system("cd '$repository' && tar -cf - --exclude=./build --exclude=./.git . | tar -xf - -C '$base'") == 0
    && system("cp -a '$build/.' '$base/build/release/'") == 0
    or die "cannot copy the tree to $base\n";
}

# NAME -> what its last run gave; a result counts while the fault and its file are the same.
sub read_results {
  my %known;
  if (-e $results) {
    for (split /\n/, text_of($results)) {
      my ($name, $digest, $outcome) = split /\t/;
      $known{$name} = { digest => $digest, outcome => $outcome };
    }
  }
  return %known;
}

sub digest_of {
  my ($fault) = @_;
  return md5_hex(join "\0", $fault->{run}, $fault->{planted});
}

sub note {
  my ($fault, $outcome) = @_;
  open my $file, '>>', $results or die "$results: $!\n";
  print $file join("\t", $fault->{name}, digest_of($fault), $outcome), "\n";
  close $file or die "$results: $!\n";
}

sub last_lines {
  my ($log) = @_;
  my @lines = split /\n/, text_of($log);
  return join '', map { "    $_\n" } @lines > 25 ? @lines[-25 .. -1] : @lines;
}

# Plants the fault and runs its test; prints and notes the outcome. `passes`: whether a test passes without a fault.
sub try_fault {
  my ($fault, $passes) = @_;
  my ($begin, $how, $outcome) = (time, '');
  my $program = program_of($fault);
  my $command = in_build($fault);
  if (!defined $passes->{$command}) {
    begin_changes();
    $passes->{$command} = in_copy(1200, "'$ninja' -C build/release $program >/dev/null && $command", $log) == 0;
    keep_changes();
    print last_lines($log) unless $passes->{$command};
  }
  begin_changes();
  write_file("$work/$fault->{file}", $fault->{planted});
  if (!$passes->{$command}) {
    $outcome = 'fails without it';
  } elsif (in_copy(1200, "'$ninja' -C build/release $program", $log) != 0) {
    $outcome = 'does not build';
    print last_lines($log);
  } else {
    my $status = in_copy($seconds_for_a_test, $command, $log);
    $outcome = $status == 0 ? 'missed' : 'caught';
    $how = $status == 124 ? ' (hangs)' : $status > 128 ? ' (crashes)' : '';
  }
  undo_changes($fault);
  note($fault, $outcome);
  printf "%-16s %-48s %4d s  %s\n", "$outcome$how", $fault->{name}, time - $begin, $fault->{run};
}

# A process that takes faults from the pipe, a record with an index each, until it is empty. Its status says how it ended.
sub start_worker {
  my ($number, $faults, $queue, $feed) = @_;
  my $pid = fork // die "fork: $!\n";
  return $pid if $pid;
  close $feed;
  $ENV{TMPDIR} = tempdir('mutants-XXXX', TMPDIR => 1);  # process numbers are those of other workers as well
  my $own = "$scratch/$number";
  ($base, $work, $stamp, $log) = map { "$own/$_" } qw(base work stamp log);
  my $status = eval {
    make_base();
    copy($base, $work);
    if (in_copy(60, 'true', $log) != 0) {
      print "skipped: the copy cannot stand in the tree's place (unshare and mount: run as root, or allow user ",
        "namespaces)\n", last_lines($log);
      return $skipped;
    }
    my %passes;
    while (sysread $queue, my $index, $record) {
      try_fault($faults->[$index], \%passes);
    }
    0;
  } // do { print $@; 1 };
  remove_tree($own, $ENV{TMPDIR});
  POSIX::_exit($status);
}

push @names, split ' ', $ENV{TESSERA_MUTANTS} // '';
my %by_name = map { $_->{name} => $_ } @faults;
for my $name (@names) {
  die "there is no fault '$name'\n" unless $by_name{$name};
}
@faults = map { $by_name{$_} } @names if @names;
make_path($scratch);
open my $lock, '>', "$scratch/lock" or die "$scratch/lock: $!\n";
flock $lock, LOCK_EX | LOCK_NB or die "$scratch: another run plants faults there; wait until it has ended\n";

my %known = @names ? () : read_results();
my @left = grep {
  my $old = $known{ $_->{name} };
  !($old && $old->{digest} eq digest_of($_) && $old->{outcome} eq 'caught');
} @faults;
printf "%d of %d faults are planted; the others were caught before\n", scalar @left, scalar @faults;

# Each worker takes the next fault when it has done with one.
pipe my $queue, my $feed or die "pipe: $!\n";
my $workers = min($ENV{TESSERA_MUTANTS_WORKERS} // 2, scalar @left);
my @pids = map { start_worker($_, \@left, $queue, $feed) } 1 .. $workers;
close $queue;
local $SIG{PIPE} = 'IGNORE';
for my $index (0 .. $#left) {
  syswrite $feed, sprintf "%${record}d", $index or last;
}
close $feed;
my @statuses = map { waitpid $_, 0; $? >> 8 } @pids;
exit $skipped if grep { $_ == $skipped } @statuses;
die "a worker ended with an error\n" if grep { $_ != 0 } @statuses;

%known = read_results();
my (@wrong, %count);
for my $fault (@faults) {
  my $outcome = $known{ $fault->{name} }{outcome};
  ++$count{$outcome};
  my $expected = defined $fault->{sometimes} ? 'caught|missed' : defined $fault->{missed} ? 'missed' : 'caught';
  push @wrong, $fault->{name} if $outcome !~ /^(?:$expected)$/;
}
printf "%s\n", join ', ', map { "$count{$_} $_" } sort keys %count;
die 'not as the lists say: ' . join(', ', @wrong) . "\n" if @wrong;
