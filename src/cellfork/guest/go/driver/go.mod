module cellfork/driver

go 1.21

require github.com/traefik/yaegi v0.16.1
