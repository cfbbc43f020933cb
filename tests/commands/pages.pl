#!/usr/bin/env perl
# Runs the commands of README.md, docs/*.md and docs/design/*.md: every block that begins with ```sh. Also holds the table of
# modules in docs/architecture.md to what the modules' CMakeLists.txt state, and the navigation of mkdocs.yml to the pages.
#
#   pages.pl REPOSITORY PROGRAM BUILD [long]
#
# The blocks of a page run one after the other in one bash with -e, in a scratch folder of the page's
# own that looks like the repository's root: it holds the configs, the examples, the reference results, and a stand-in of
# ./dev that uses what is built already. `tessera` is on the PATH. Comments in front of a block say more:
#   <!-- not run: REASON -->  only that its commands exist is checked
#   <!-- long -->             runs only when this script is called with `long`
# and <!-- check: COMMAND --> after a block is a command that the reader does not see; $REPOSITORY is the
# repository. Two more comments hold what is shown to what is so:
#   <!-- prints -->      in front of a ```text block: the block of commands before it prints just that
#   <!-- code: FILE -->  in front of a ```cpp block: FILE, a source that the tests build and run, holds
#                        these lines one after another, spaced as it likes. Where one block of a page is
#                        held so, all of its ```cpp blocks must be.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Path qw(remove_tree);
use File::Temp qw(tempdir);
use FindBin;
use lib "$FindBin::RealBin/../support";
use Files qw(text_of write_file);

die "usage: pages.pl REPOSITORY PROGRAM BUILD [long]\n" unless @ARGV >= 3;
my ($repository, $program, $build) = map { abs_path($_) // die "$_: no such file\n" } @ARGV[0 .. 2];
my $long = ($ARGV[3] // '') eq 'long';

my $scratch = tempdir(CLEANUP => 1);
sub output_of { my $text = qx{$_[0] 2>&1}; return $? == 0 ? $text : ''; }
my $dev_help = output_of("'$repository/dev' help");
my $tessera_help = output_of("'$program' --help");
my (%count, @failures);

# What a line of a block begins with must exist, whether the block is run or not.
sub check_names {
  my ($where, $block) = @_;
  while ($block =~ /^\s*(?:\w+=\S+\s+)*\.\/dev\s+([a-z]+)/mg) {
    push @failures, "$where: ./dev help does not explain '$1'" unless $dev_help =~ /^  $1 /m;
  }
  while ($block =~ /(?:^\s*(?:\w+=\S+\s+)*tessera|\.\/dev run)\s+([a-z]+)/mg) {
    push @failures, "$where: tessera --help does not list '$1'" unless $tessera_help =~ /^  $1 /m;
  }
}

# The blocks of a page that are to be run, as one script.
sub script_of {
  my ($page) = @_;
  open my $file, '<', "$repository/$page" or die "$page: $!\n";
  my ($script, $block, $begin, $mark, $ran, $language) = ('', undef, 0, '', 0, '');
  my (@loose, $held);
  while (my $line = <$file>) {
    if (defined $block) {
      if ($line !~ /^```/) { $block .= $line; next; }
      if ($language ne 'sh') {
        if ($mark =~ /^code: (\S+)$/) { $held = check_code("$page:$begin", $block, $1); }
        elsif ($language eq 'cpp') { push @loose, "$page:$begin"; }
        elsif ($mark eq 'prints' && $ran) {
          $script .= "place='$page:$begin'\ndiff -u --label printed --label page '$scratch/printed' - "
            . "<<'END_OF_PRINTED'\n${block}END_OF_PRINTED\n";
          ++$count{'held to what was printed'};
        }
        ($block, $mark) = (undef, '');
        next;
      }
      check_names("$page:$begin", $block);
      $ran = $mark eq '' || ($mark eq 'long' && $long);
      ++$count{$ran ? 'run' : $mark eq 'long' ? 'left to the long test' : 'marked as not run'};
      $script .= "place='$page:$begin'\n{\n$block} >'$scratch/printed'\ncat '$scratch/printed'\n" if $ran;
      ($block, $mark) = (undef, '');
    } elsif ($line =~ /^```(sh|cpp|text)\s*$/) {
      ($block, $begin, $language) = ('', $., $1);
      if ($1 eq 'sh' ? $mark =~ /^prints|^code/ : $mark =~ /^not run|^long/) {
        push @failures, "$page:$.: '$mark' does not go with a block of $1";
        $mark = '';
      }
    } elsif ($line =~ /^<!-- not run: \S.*-->\s*$/) {
      $mark = 'not run';
    } elsif ($line =~ /^<!-- (long|prints|code: \S+) -->\s*$/) {
      $mark = $1;
    } elsif ($line =~ /^<!-- check: (.*) -->\s*$/) {
      $script .= "place='$page:$.'\n$1\n" if $ran;
    } elsif ($mark ne '' && $line =~ /\S/) {
      push @failures, "$page:$.: a comment about a block must stand right before it";
      $mark = '';
    }
  }
  push @failures, map { "$_: no <!-- code: FILE --> says where this block is compiled and run" } @loose if $held;
  return $script;
}

# The lines of a block must stand in a source, one after another; blank ones and indentation do not count.
sub check_code {
  my ($where, $block, $source) = @_;
  my $plain = sub { join "\n", grep { $_ ne '' } map { s{\s+}{ }gr =~ s{^ | $}{}gr } split /\n/, $_[0] };
  if (!-f "$repository/$source") { push @failures, "$where: there is no $source"; return 1; }
  push @failures, "$where: these lines are not in $source"
    unless index("\n" . $plain->(text_of("$repository/$source")) . "\n", "\n" . $plain->($block) . "\n") >= 0;
  ++$count{'held to their source'};
  return 1;
}

# The table of modules in the architecture's page states what each CMakeLists.txt states.
sub check_modules {
  my %stated;
  for my $path (glob "$repository/modules/*/CMakeLists.txt") {
    my ($module, $imports) = text_of($path) =~ /tessera_module\((\w+)[^)]*?(?:\bIMPORTS\s+([^)]*))?\)/ or next;
    $stated{$module} = join ' ', split ' ', $imports // '';
  }
  my %listed = text_of("$repository/docs/architecture.md") =~ /^\| (\w+) \| .* \| ?([a-z0-9_ ]*?) ?\|$/mg;
  for my $module (sort keys %stated) {
    push @failures, "docs/architecture.md: '$module' imports '$stated{$module}', the table says '"
      . ($listed{$module} // 'nothing of it') . "'"
      unless ($listed{$module} // '-') eq $stated{$module};
  }
}

# The site's navigation has every page once.
sub check_site {
  my @pages = @_;
  my %listed;
  ++$listed{"docs/$_"} for text_of("$repository/mkdocs.yml") =~ /: ([\w\/.-]+\.md)$/mg;
  for my $page (grep { /^docs/ } @pages) {
    push @failures, "mkdocs.yml: the navigation has $page " . ($listed{$page} // 0) . " times"
      unless ($listed{$page} // 0) == 1;
  }
}

my $home = "$scratch/home";
mkdir $_ for $home, "$scratch/bin";
symlink $program, "$scratch/bin/tessera" or die "tessera: $!\n";
my $stand_in = <<"END";
#!/usr/bin/env bash
set -euo pipefail
command=\$1
shift
case \$command in
  run) exec tessera "\$@" ;;
  install) exec cmake --install '$build' --prefix "\$1" ;;
  cmake) exec cmake "\$@" ;;
  *) echo "./dev \$command is not run by the tests" >&2; exit 1 ;;
esac
END

my @pages = ("README.md", map { s{^\Q$repository\E/}{}r } sort glob("$repository/docs/*.md"), glob("$repository/docs/design/*.md"));
for my $page (@pages) {
  my $script = script_of($page) or next;
  my $folder = "$scratch/" . $page =~ tr{/}{-}r;
  mkdir $folder;
  mkdir "$folder/$_" for qw(apps tests);
  symlink "$repository/tests/reference", "$folder/tests/reference" or die "the reference results: $!\n";
  system('cp', '-r', "$repository/configs", $folder) == 0 or die "the configs cannot be copied\n";
  system('cp', '-r', "$repository/apps/examples", "$folder/apps") == 0 or die "the examples cannot be copied\n";
  write_file("$folder/dev", $stand_in);
  chmod 0755, "$folder/dev";
  write_file("$scratch/script", "set -euo pipefail\nexec 3>&1\n"
    . "trap 'cat \"$scratch/printed\" >&3; echo \"failed: the block at \$place: \$BASH_COMMAND\" >&2' ERR\n$script");
  write_file("$scratch/printed", '');
  # What an earlier run has left under the names that the page uses.
  remove_tree($_) for grep { index($_, $scratch) != 0 } $script =~ m{/tmp/[\w.-]+}g;
  local $ENV{PATH} = "$scratch/bin:$ENV{PATH}";
  local $ENV{REPOSITORY} = $repository;
  local $ENV{XDG_DATA_HOME} = "$home/share"; # no plugin of the user's own
  my $log = "$scratch/log";
  if (system("cd '$folder' && bash ../script >'$log' 2>&1 </dev/null") != 0) {
    push @failures, "$page: its commands end with an error; they printed\n" . text_of($log);
  }
}

check_modules();
check_site(@pages);
print "$_\n" for @failures;
print join(', ', map { "$count{$_} blocks $_" } sort keys %count), "\n";
push @failures, 'nothing was run' unless $count{run};
exit(@failures ? 1 : 0);
