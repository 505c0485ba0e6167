# bash completion for rota; written by tools/pages/write.
_rota() {
  local now=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} options="" i
  for ((i = 2; i < COMP_CWORD; ++i)); do
    # Behind -- it is the program's command line.
    if [[ ${COMP_WORDS[i]} == -- ]]; then
      if ((i + 1 == COMP_CWORD)); then COMPREPLY=($(compgen -c -- "$now")); else COMPREPLY=($(compgen -f -- "$now")); fi
      return
    fi
    [[ $command == trace && ${COMP_WORDS[i]} =~ ^(show|export)$ ]] && command="trace ${COMP_WORDS[i]}"
  done
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "run try demo sim status top control doctor trace ci report --help --version" -- "$now"))
    return
  fi
  case "$command $before" in
    "run --mode") COMPREPLY=($(compgen -W "automatic exclusive concurrent" -- "$now")); return ;;
    "run --memory") COMPREPLY=($(compgen -W "auto managed native swap" -- "$now")); return ;;
    "try --mode") COMPREPLY=($(compgen -W "automatic exclusive concurrent" -- "$now")); return ;;
    "try --memory") COMPREPLY=($(compgen -W "auto managed native swap" -- "$now")); return ;;
    "sim --gpu") COMPREPLY=($(compgen -W "h200 h100 a100 l4 t4 rtx4090 mig-1g" -- "$now")); return ;;
    "sim --unregistered") COMPREPLY=($(compgen -W "fail skip" -- "$now")); return ;;
    "ci --sim") COMPREPLY=($(compgen -W "h200 h100 a100 l4 t4 rtx4090 mig-1g" -- "$now")); return ;;
    "ci --mode") COMPREPLY=($(compgen -W "automatic exclusive concurrent" -- "$now")); return ;;
    "ci --memory") COMPREPLY=($(compgen -W "auto managed native swap" -- "$now")); return ;;
    "report --format") COMPREPLY=($(compgen -W "text json junit html github" -- "$now")); return ;;
    "trace show --addresses") COMPREPLY=($(compgen -W "stable raw" -- "$now")); return ;;
    "trace export --format") COMPREPLY=($(compgen -W "chrome" -- "$now")); return ;;
    "control mode") COMPREPLY=($(compgen -W "automatic exclusive concurrent" -- "$now")); return ;;
    "run --quantum"|"run --gpu-mem"|"run --host-mem"|"run --name"|"run --gang"|"run --gpus"|"run --report"|"try -n"|"try --copies"|"try --rounds"|"try --quantum"|"try --gpu-mem"|"try --host-mem"|"try --name"|"demo -n"|"demo --copies"|"sim --profile"|"sim --memory"|"sim --driver"|"sim --kernels"|"sim --fault"|"sim --time-scale"|"sim --state"|"status --watch"|"top -d"|"top --delay"|"control --socket"|"doctor --timeout"|"trace --dir"|"trace --max-bytes"|"ci --report-dir"|"ci --junit"|"ci --json"|"ci --html"|"ci --repeat"|"ci --gpus-per-test"|"ci --hang-after"|"ci --baseline"|"ci --update"|"ci --fail-on"|"ci --suppress"|"ci --quantum"|"ci --gpu-mem"|"ci --host-mem"|"ci --name"|"report -o"|"report --output"|"report --baseline"|"report --update"|"report --fail-on"|"report --suppress"|"trace show --pid"|"trace show --function"|"trace show --exclude"|"trace show --elements"|"trace export -o"|"trace export --output") COMPREPLY=($(compgen -f -- "$now")); return ;;
  esac
  case $command in
    "run") options="-h --help --mode --quantum --memory --gpu-mem --host-mem --name --oversubscribe --gang --gpus --system-preload --report" ;;
    "try") options="-h --help -n --copies --rounds --json --mode --quantum --memory --gpu-mem --host-mem --name --oversubscribe" ;;
    "demo") options="-h --help -n --copies --sim --json" ;;
    "sim") options="-h --help --gpu --profile --memory --driver --kernels --unregistered --fault --time-scale --virtual-clock --state" ;;
    "status") options="-h --help --json --watch" ;;
    "top") options="-h --help -d --delay" ;;
    "control") options="-h --help --socket" ;;
    "doctor") options="-h --help --json --verbose --timeout" ;;
    "trace") options="-h --help --dir --append --max-bytes" ;;
    "ci") options="-h --help --report-dir --junit --json --html --github --suggest --repeat --gpus-per-test --hang-after --system-preload --baseline --update --fail-on --suppress --sim --mode --quantum --memory --gpu-mem --host-mem --name --oversubscribe" ;;
    "report") options="-h --help --format -o --output --baseline --update --fail-on --suppress" ;;
    "trace show") options="-h --help --pid --function --exclude --errors --lookups --json --addresses --no-times --mangled --elements" ;;
    "trace export") options="-h --help --format -o --output" ;;
  esac
  [[ $command == trace ]] && options="$options show export"
  [[ $command == control ]] && options="$options mode quantum grace nvml reload stop"
  [[ $command == run || $command == sim || $command == trace || $command == doctor ]] && options="$options --"
  if [[ $now == -* || $command != "trace "* ]]; then COMPREPLY=($(compgen -W "$options" -- "$now")); else COMPREPLY=($(compgen -f -- "$now")); fi
}
complete -o filenames -F _rota rota
