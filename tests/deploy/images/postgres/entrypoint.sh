# Starts as root, takes its directories, and becomes the user postgres, as the official image does.
if [ "$(id -u)" = 0 ]; then
    install -d -o postgres -g postgres -m 0700 "$PGDATA"
    install -d -o postgres -g postgres -m 0775 /var/run/postgresql
    exec setpriv --reuid=postgres --regid=postgres --init-groups sh -e /entrypoint.sh
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    echo "$POSTGRES_PASSWORD" > /tmp/password
    # without a locale the encoding is SQL_ASCII, the hardest case for a client
    initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --locale=C --encoding=SQL_ASCII \
        --auth-local=trust --auth-host=scram-sha-256
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    pg_ctl -w -o "-c listen_addresses=''" start
    createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl -w stop
fi
exec postgres -c "listen_addresses=*"
